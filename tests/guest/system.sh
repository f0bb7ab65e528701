#!/usr/bin/env bash
# Boots Debian 13 with systemd and cloud-init on a tap that exists: system.sh IFNAME MAC SERIAL-LOG SMBIOS.
#
# It is a machine as any cloud image is one: systemd, networkd, cloud-init as packaged, and SMBIOS as its type 1 table (QEMU's
# words: serial=…,product=…,uuid=…, a comma within a value twice); only its root file system lies in memory, which needs no
# disk. The console goes to SERIAL-LOG ("-": standard
# output). Nothing tells it to end but its own user data. Emulated: a boot takes most of a minute. Ends with the machine,
# or after GUEST_TIMEOUT seconds (240) with status 124.
set -euo pipefail

[ $# = 4 ] || { printf 'usage: %s IFNAME MAC SERIAL-LOG|- SMBIOS\n' "$0" >&2; exit 64; }
ifname=$1 mac=$2 log=$3 smbios=$4
image=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/target/guest/debian13
[ -s "$image.vmlinuz" ] && [ -s "$image.cpio" ] || { printf 'no %s; run: tests/guest/debian.sh\n' "$image.cpio" >&2; exit 1; }

serial=stdio
[ "$log" = - ] || serial=file:$log

# As in boot.sh: no time for hardware that is not there, nor for self tests.
quick="console=ttyS0 loglevel=4 panic=-1 no_timer_check tsc=reliable nokaslr mitigations=off cryptomgr.notests random.trust_cpu=on"

# exec: whoever kills this script's process kills the machine with it.
exec timeout --kill-after=2 "${GUEST_TIMEOUT:-240}" qemu-system-x86_64 \
    -accel tcg -cpu max -m 768 -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$image.vmlinuz" -initrd "$image.cpio" -append "$quick" -smbios "type=1,$smbios" \
    -netdev "tap,id=net0,ifname=$ifname,script=no,downscript=no" -device "virtio-net-pci,netdev=net0,mac=$mac,romfile=" \
    -serial "$serial" -monitor none </dev/null
