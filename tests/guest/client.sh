#!/usr/bin/env bash
# Runs a program in a chroot in this network namespace: client.sh TREE DISK SMBIOS COMMAND….
#
# The machine is that of chroot.sh. At /opt/own it finds what tests/clients/build.sh made beside the trees, at /opt/ask the
# programs of tests/clients/ask. What the command says goes to standard output; GUEST_TIMEOUT bounds it (120 s).
set -euo pipefail

[ $# -ge 4 ] || { printf 'usage: %s TREE DISK SMBIOS COMMAND…\n' "$0" >&2; exit 64; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/chroot.sh"
alone "$@"
enter "$1" "$2" "$3"

mkdir -p "$root"/opt/{own,ask}
mount --bind "$here/../clients/ask" "$root/opt/ask"
own=$here/../../target/clients/own
[ ! -d "$own" ] || mount --bind "$own" "$root/opt/own"
shift 3
machine "$@"
