#!/usr/bin/env bash
# Asks whether this machine can run what attaches programs and boots guests: a kernel with tcx, taps, a way to be root.
# Says nothing when it can; otherwise one sentence with the mend, and status 1.
set -euo pipefail

die() { printf 'machine: %s\n' "$1" >&2; exit 1; }

release=$(uname -r)
[ "$(printf '6.6\n%s\n' "$release" | sort -V | head -n 1)" = 6.6 ] ||
    die "kernel $release has no tcx, which the guard stands on: 6.6 or later is needed (Debian 13, Debian 12 with the backports kernel, Proxmox VE 8.2)"

if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "neither root nor sudo: network namespaces and BPF programs need one of them"
    # Where nobody can type a password, say so now and not in the middle.
    if [ -n "${CI:-}" ] || [ ! -t 0 ]; then sudo -n true || die "sudo asks for a password and nobody is here to type it"; else sudo true; fi
fi

[ -c /dev/net/tun ] || die "no /dev/net/tun: run 'modprobe tun' as root (in a container: pass the device in)"
