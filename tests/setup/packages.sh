#!/usr/bin/env bash
# Installs the Debian packages that a piece of work needs: packages.sh [build] [demo] [test] [bench] [clients] | --refresh
#
# Says nothing and changes nothing when they are there. Needs root only when something is missing, and takes sudo for it.
# Rust is not ours to install: what is missing is named with its mend. Debian 12 and 13.
set -euo pipefail

# The BPF programs are C, compiled at build time; OpenSSL is the one crypto stack.
build=(clang llvm libbpf-dev linux-libc-dev pkg-config libssl-dev gcc libc6-dev make)
# A node in a namespace, and a real machine in it; apt, cpio and kmod make the guest's image.
demo=(qemu-system-x86 seabios iproute2 busybox-static cpio gzip xz-utils zstd kmod curl procps util-linux)
# Beyond that, other clients (iPXE, Debian systems with cloud-init), eyes on the wire, a hand that makes system calls fail,
# a guest that translates addresses, and two libraries that check tokens.
test=("${demo[@]}" ipxe ipxe-qemu ethtool mmdebstrap nftables strace tcpdump jose python3-cryptography python3-jwt)
# What we are compared with, and what makes the traffic.
bench=(nginx-light wrk iperf3 iproute2 curl procps util-linux)
# What fetches the clients that Debian does not have; they stay below target.
clients=(python3-pip)

die() { printf 'packages: %s\n' "$1" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        # Without a terminal nobody can type a password: say so at once instead of waiting for one.
        if [ -n "${CI:-}" ] || [ ! -t 0 ]; then sudo -n "$@"; else sudo "$@"; fi
    else
        die "neither root nor sudo; as root, run: tests/setup/packages.sh $groups"
    fi
}

# apt is only worth reading when it fails.
apt() {
    local log
    log=$(mktemp)
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$@" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        die "apt-get $1 failed (above); mend that and run: tests/setup/packages.sh $groups"
    fi
    rm -f "$log"
}

need_rust() {
    local wanted have
    wanted=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../../rust-toolchain.toml")
    command -v cargo >/dev/null ||
        die "no cargo in PATH. Rust $wanted is needed: install rustup, or add ~/.cargo/bin to PATH (sudo drops it: run as root with PATH kept, or without sudo)"
    # In this directory rustup fetches the pinned toolchain by itself; any other cargo must be new enough.
    have=$(cd "$(dirname "${BASH_SOURCE[0]}")" && cargo --version) || die "cargo does not start; Rust $wanted is needed"
    have=$(printf '%s\n' "$have" | awk '{ print $2 }')
    [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ] ||
        die "cargo is $have and Rust $wanted is needed: install it with rustup"
}

groups=$*
[ $# -gt 0 ] || { printf 'usage: %s [build] [demo] [test] [bench] [clients] | --refresh\n' "$0" >&2; exit 64; }
command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || die "this is not Debian: no apt-get. The names to install by hand are in $0"

wanted=()
for group in "$@"; do
    case $group in
        build) wanted+=("${build[@]}") ;;
        demo) wanted+=("${demo[@]}") ;;
        test) wanted+=("${test[@]}") ;;
        bench) wanted+=("${bench[@]}") ;;
        clients) wanted+=("${clients[@]}") ;;
        --refresh) apt update; exit 0 ;;
        *) die "no group '$group'; there are build, demo, test, bench and clients" ;;
    esac
done

missing=()
for package in $(printf '%s\n' "${wanted[@]}" | sort -u); do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    printf 'packages: asking the archive for its lists\n'
    apt update
    printf 'packages: installing %s\n' "${missing[*]}"
    apt install --no-install-recommends "${missing[@]}"
    printf 'packages: done\n'
fi

case " $groups " in *" build "*) need_rust ;; esac
