#!/usr/bin/env bash
# Makes the Debian systems that boot Debian's own cloud-init: target/guest/debian12 and debian13, two trees to chroot into
# (cloud-init.sh), and of the second also a machine for QEMU: debian13.vmlinuz and debian13.cpio (system.sh).
#
# In: Debian's packages, from the archive that this machine's apt uses. Nothing of them is changed but what a cloud image
# sets too (networkd is on, nobody waits for a log-in); cloud-init is as packaged. Out: what is named above and nothing else
# on the machine; it belongs to root, as its files must. A second call finds it made by the same script and does nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/target/guest
PATH=$PATH:/usr/sbin:/sbin

# Debian 12 with the network of its day: cloud-init 22.4, ifupdown; and small clients of other kinds.
packages12=cloud-init,ifupdown,isc-dhcp-client,iproute2,passwd,mount,procps,cloud-guest-utils,amazon-ec2-utils,curl,ignition
# Debian 13: cloud-init 25.1, networkd; systemd and a kernel to boot it by.
packages13=cloud-init,dhcpcd-base,iproute2,passwd,mount,procps,systemd-sysv,udev,dbus,linux-image-cloud-amd64
# For an emulated machine: its network card. All else the cloud kernel has built in.
modules=(virtio_net)

die() { printf 'debian: %s\n' "$1" >&2; exit 1; }
say() { printf 'debian: %s\n' "$1"; }

. "$here/bootstrap.sh"

stamp=$(cat "${BASH_SOURCE[0]}" "$here/bootstrap.sh" | cksum)
[ "$(cat "$out/debian.stamp" 2>/dev/null)" != "$stamp" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "a system's files belong to root: run this as root or with sudo"
    exec sudo ${CI:+-n} "$0"
fi
for tool in apt-get mmdebstrap cpio depmod modprobe; do
    command -v "$tool" >/dev/null || die "$tool is missing; run: tests/setup/packages.sh test"
done

find_mirror

# Made aside and renamed when whole.
fresh=$out/debian.new
rm -rf "$fresh" "$out/debian.stamp"
mkdir -p "$fresh"
trap 'rm -rf "$fresh"' EXIT

say "installing Debian 12 and 13 below target/guest"
bootstrap bookworm "$packages12" "$fresh/debian12" &
twelve=$!
bootstrap trixie "$packages13" "$fresh/debian13" || die "Debian 13 cannot be installed (above)"
wait "$twelve" || die "Debian 12 cannot be installed (above)"

tree=$fresh/debian13
version=$(basename "$tree"/usr/lib/modules/*)
# A log-in prompt would write into what the test reads. It complains of a missing /proc, which it does not need for this.
chroot "$tree" sh -c 'systemctl --quiet enable systemd-networkd && systemctl --quiet mask getty@.service serial-getty@.service' \
    2>"$fresh/systemctl.log" || { cat "$fresh/systemctl.log" >&2; die "systemd's units cannot be set"; }
ln -s usr/sbin/init "$tree/init"

say "packing Debian 13 with kernel $version for QEMU"
mv "$tree/boot/vmlinuz-$version" "$fresh/debian13.vmlinuz"
kept=$fresh/kept/usr/lib/modules/$version
mkdir -p "$kept"
cp "$tree/usr/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$kept"
depmod -b "$tree/usr" "$version"
modprobe -d "$tree/usr" -S "$version" --show-depends -a "${modules[@]}" | while read -r line path _; do
    [ "$line" = insmod ] || continue
    install -D -m 644 "$path" "$fresh/kept/usr/lib/${path#"$tree"/usr/lib/}"
done
depmod -b "$fresh/kept/usr" "$version"
# An emulated processor unpacks it: plain, and without what only hardware or dpkg would read.
rm -rf "$tree"/boot/* "$tree"/usr/lib/modules "$tree"/usr/lib/udev/hwdb.{d,bin} "$tree"/var/{cache/apt,lib/apt,lib/dpkg/info}
for part in "$tree" "$fresh/kept"; do
    (cd "$part" && find . -print0 | LC_ALL=C sort -z | cpio --null --create --quiet --format=newc)
done >"$fresh/debian13.cpio"

for made in debian12 debian13 debian13.vmlinuz debian13.cpio; do
    rm -rf "${out:?}/$made"
    mv "$fresh/$made" "$out/$made"
done
printf '%s\n' "$stamp" >"$out/debian.stamp"
for made in debian12 debian13; do
    say "$made has cloud-init $(chroot "$out/$made" dpkg-query -W -f '${Version}' cloud-init)"
done
