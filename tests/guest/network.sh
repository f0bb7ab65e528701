#!/usr/bin/env bash
# What Debian's own cloud-init makes of a network configuration: network.sh TREE DOCUMENT WRITER [IFUPDOWN-TREE].
#
# TREE is one of tests/guest/debian.sh, DOCUMENT a file of version 1 or 2, WRITER one of cloud-init's renderers. Standard
# output has the files it wrote, one behind the other. With IFUPDOWN-TREE (for the writer eni) that system's ifupdown then
# sets up a card by them, and behind "== routes" stand the default routes that the kernel has now. With CARDS ("NAME,MAC" of
# each card there is) DOCUMENT is OpenStack's network_data.json, and read as its datasource does. The card is in a network
# namespace that nothing leads out of, and the trees are as they were: all is written into memory that ends with the script.
set -euo pipefail

[ $# = 3 ] || [ $# = 4 ] || { printf 'usage: %s TREE DOCUMENT WRITER [IFUPDOWN-TREE]\n' "$0" >&2; exit 64; }
tree=$1 document=$2 writer=$3 ifupdown=${4:-}

if [ "${GUEST_INSIDE:-}" != 1 ]; then
    exec env GUEST_INSIDE=1 timeout --kill-after=2 "${GUEST_TIMEOUT:-60}" \
        unshare --mount --net --pid --fork --kill-child --propagation private "$0" "$@"
fi

machine() { chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "${@:2}"; }

# No /sys: there the card would be looked for, and its name be another one than the document's.
mount -t tmpfs tmpfs "$tree/mnt"
mount -t tmpfs tmpfs "$tree/run"
cp "$document" "$tree/mnt/document"
# Whom networkd's files are given to: Debian 12's tree has no networkd.
for file in passwd group; do
    { grep -v '^systemd-network:' "$tree/etc/$file"; printf 'systemd-network:x:998:%s\n' "$([ "$file" = group ] || printf '998::/:/usr/sbin/nologin')"; } >"$tree/mnt/$file"
    mount --bind "$tree/mnt/$file" "$tree/etc/$file"
done
kind=yaml known=()
if [ -n "${CARDS:-}" ]; then
    read -ra cards <<<"$CARDS"
    kind=network_data.json known=("${cards[@]/#/--mac=}")
fi
machine "$tree" cloud-init devel net-convert --network-data /mnt/document --kind "$kind" "${known[@]}" --distro debian \
    --output-kind "$writer" --directory /mnt/made >"$tree/mnt/said" 2>&1 || { cat "$tree/mnt/said" >&2; exit 1; }
find "$tree/mnt/made" -type f ! -name '*.rules' -exec cat {} +
[ -n "$ifupdown" ] || exit 0

written=$(find "$tree/mnt/made" -path '*/interfaces*' -type f)
root=$tree/mnt/root
mkdir "$root"
mount --rbind "$ifupdown" "$root"
mount -t tmpfs tmpfs "$root/run"
mount -t proc proc "$root/proc"
mkdir "$root/run/network"
cp "$written" "$root/run/interfaces"
ip link set lo up
ip link add net0 type veth peer name far
ip link set far up
machine "$root" ifup --interfaces=/run/interfaces --state-dir=/run/network net0 >&2
printf '== routes\n'
{ ip -4 route show default; ip -6 route show default; } | awk '{ print $1, $2, $3 }'
