#!/usr/bin/env bash
# Boots the test guest on a tap that exists: boot.sh IFNAME MAC SERIAL-LOG ["orders for the kernel command line"].
#
# The guest's console goes to SERIAL-LOG ("-": standard output). Orders are those of tests/guest/init. The processor is
# emulated (TCG), so the same command works where there is no hardware virtualisation; offloads stay as virtio has
# them, on. Ends when the guest has switched itself off, or after GUEST_TIMEOUT seconds (60) with status 124.
# GUEST_QUEUES=N gives the card N queue pairs (the tap must be a multi-queue one); GUEST_QEMU adds arguments of its own.
set -euo pipefail

if [ $# -lt 3 ] || [ $# -gt 4 ]; then
    printf 'usage: %s IFNAME MAC SERIAL-LOG|- ["imds.job=… imds.ip=…"]\n' "$0" >&2
    exit 64
fi
ifname=$1 mac=$2 log=$3 orders=${4:-}
image=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/target/guest
[ -s "$image/vmlinuz" ] && [ -s "$image/initramfs.cpio.gz" ] || {
    printf 'no guest image in %s; run: tests/guest/build.sh\n' "$image" >&2
    exit 1
}

netdev=tap,id=net0,ifname=$ifname,script=no,downscript=no
device=virtio-net-pci,netdev=net0,mac=$mac,romfile=
if [ "${GUEST_QUEUES:-1}" -gt 1 ]; then
    netdev+=,queues=$GUEST_QUEUES
    device+=,mq=on,vectors=$((2 * GUEST_QUEUES + 2))
fi
serial=stdio
[ "$log" = - ] || serial=file:$log

# What a guest this small needs no time for: probing hardware it does not have, and self tests.
quick="console=ttyS0 loglevel=0 panic=-1 no_timer_check tsc=reliable nokaslr mitigations=off cryptomgr.notests random.trust_cpu=on"

# exec: whoever kills this script's process kills the machine with it.
# shellcheck disable=SC2086
exec timeout --kill-after=2 "${GUEST_TIMEOUT:-60}" qemu-system-x86_64 \
    -accel tcg -cpu max -m 256 -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$image/vmlinuz" -initrd "$image/initramfs.cpio.gz" -append "$quick $orders" \
    -netdev "$netdev" -device "$device" -serial "$serial" -monitor none ${GUEST_QEMU:-} </dev/null
