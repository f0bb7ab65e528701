#!/usr/bin/env bash
# Boots iPXE on a tap that exists and lets it fetch one address: ipxe.sh IFNAME MAC SERIAL-LOG [URL [chain]].
#
# Another TCP stack than Linux, and the one that network boots rest on: full checksums, an MSS of its own, one
# keep-alive connection. With "chain" what it fetched is a script, and run. The console goes to SERIAL-LOG ("-": standard output): after a good fetch iPXE lists the image with
# its size ("meta-data : 61 bytes") and says "IMDS-IPXE done status=0". Ends with the machine, or after GUEST_TIMEOUT
# seconds (60) with status 124. GUEST_IP is its address (169.254.1.2).
set -euo pipefail

if [ $# -lt 3 ] || [ $# -gt 5 ]; then
    printf 'usage: %s IFNAME MAC SERIAL-LOG|- [URL [chain]]\n' "$0" >&2
    exit 64
fi
ifname=$1 mac=$2 log=$3 url=${4:-http://169.254.169.254/nocloud/meta-data}
case ${5:-} in chain) fetch=chain ;; *) fetch=imgfetch ;; esac
image=/usr/lib/ipxe/ipxe.lkrn
[ -s "$image" ] || { printf 'no %s; run: tests/setup/packages.sh test\n' "$image" >&2; exit 1; }

script=$(mktemp)
cat >"$script" <<IPXE
#!ipxe
set net0/ip ${GUEST_IP:-169.254.1.2}
set net0/netmask 255.255.0.0
ifopen net0
$fetch $url || goto failed
imgstat
echo IMDS-IPXE done status=0
goto off
:failed
echo IMDS-IPXE done status=1
:off
echo restarting
reboot
IPXE
# Held open and unlinked at once: nothing is left behind, however this ends.
exec 3<"$script"
rm -f "$script"

serial=stdio
[ "$log" = - ] || serial=file:$log

# Without graphics the firmware's text console is the serial port; iPXE writes to whatever the firmware calls a screen. The
# line after the verdict is there to be cut off by the restart. exec: whoever kills this process kills the machine.
exec timeout --kill-after=2 "${GUEST_TIMEOUT:-60}" qemu-system-x86_64 \
    -accel tcg -M q35,graphics=off -m 256 -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$image" -initrd /proc/self/fd/3 \
    -netdev "tap,id=net0,ifname=$ifname,script=no,downscript=no" -device "virtio-net-pci,netdev=net0,mac=$mac,romfile=" \
    -serial "$serial" -monitor none </dev/null
