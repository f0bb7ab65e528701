#!/usr/bin/env bash
# Makes the kernel and the initramfs of the test guest: target/guest/vmlinuz and target/guest/initramfs.cpio.gz.
#
# In: a Debian kernel package (the cloud flavour: small, virtio as modules), taken apart and never installed; the static
# busybox of this machine; tests/guest/init as the guest's first and only program. Out: the two files, and nothing
# else on the machine. A second call finds them made from the same inputs and does nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/target/guest
PATH=$PATH:/usr/sbin:/sbin

# virtio_net and the PCI transport Proxmox gives it; 8021q for guests that tag their own frames.
base_modules=(virtio_pci virtio_net)
vlan_modules=(8021q)

die() { printf 'guest image: %s\n' "$1" >&2; exit 1; }
say() { printf 'guest image: %s\n' "$1"; }

for tool in apt-get apt-cache dpkg-deb depmod modprobe cpio gzip; do
    command -v "$tool" >/dev/null || die "$tool is missing; run: tests/setup/packages.sh test"
done
busybox=$(command -v busybox) || die "busybox is missing; run: tests/setup/packages.sh test"
dpkg-query -W -f='${Status}' busybox-static 2>/dev/null | grep -q '^install ok installed' ||
    die "the guest has no libraries, so busybox must be the static one; run: tests/setup/packages.sh test"

stamp=$(cat "${BASH_SOURCE[0]}" "$here/init" "$busybox" | cksum)
if [ -s "$out/vmlinuz" ] && [ -s "$out/initramfs.cpio.gz" ] && [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
rm -f "$out/stamp"

meta=linux-image-cloud-amd64
kernel_package() { apt-cache depends "$meta" 2>/dev/null | awk '/Depends: linux-image-/ { print $2; exit }'; }
package=$(kernel_package)
if [ -z "$package" ]; then
    say "asking the package lists anew"
    "$root/tests/setup/packages.sh" --refresh
    package=$(kernel_package)
fi
[ -n "$package" ] || die "apt knows no $meta; this needs a Debian archive in the apt sources"

if ! ls "$out/$package"_*.deb >/dev/null 2>&1; then
    say "downloading $package"
    rm -f "$out"/*.deb
    # The lists may be older than the archive: a version that has gone is asked for once more, with new lists.
    fetch() { (cd "$out" && apt-get -qq -o APT::Sandbox::User=root download "$1"); }
    if ! fetch "$package"; then
        "$root/tests/setup/packages.sh" --refresh
        package=$(kernel_package)
        fetch "$package" || die "cannot download $package"
    fi
fi

say "taking $package apart"
dpkg-deb -x "$out/$package"_*.deb "$work/kernel"
version=$(basename "$(echo "$work"/kernel/boot/vmlinuz-*)")
version=${version#vmlinuz-}
# Debian 13 moved /lib below /usr.
modules_root=$work/kernel
[ -d "$modules_root/lib/modules/$version" ] || modules_root=$work/kernel/usr
depmod -b "$modules_root" "$version"

tree=$work/tree
mkdir -p "$tree"/{bin,dev,etc,proc,sys,tmp,modules/base,modules/vlan}
# A static libc has no name service libraries to load: these keep it from looking.
printf 'services: files\nhosts: files\n' >"$tree/etc/nsswitch.conf"
: >"$tree/etc/services"
: >"$tree/etc/hosts"
cp "$busybox" "$tree/bin/busybox"
cp "$here/init" "$tree/init"
chmod 755 "$tree/init" "$tree/bin/busybox"
for applet in $("$busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$tree/bin/$applet"
done

# Each module after those it needs, numbered in that order, unpacked: the guest only has to insert them.
copy_modules() {
    local into=$1 n=10 line path name plain
    shift
    modprobe -d "$modules_root" -S "$version" --show-depends -a "$@" | while read -r line path _; do
        [ "$line" = insmod ] || continue
        name=$(basename "$path")
        plain=${name%%.ko*}.ko
        if compgen -G "$tree/modules/*/[0-9][0-9]-$plain" >/dev/null; then continue; fi
        case $name in
            *.ko) cp "$path" "$into/$n-$plain" ;;
            *.ko.xz) "$busybox" xzcat "$path" >"$into/$n-$plain" ;;
            *.ko.zst) zstd -dcq "$path" >"$into/$n-$plain" ;;
            *) die "module $name is packed in a way nobody here can unpack" ;;
        esac
        n=$((n + 1))
    done
}
copy_modules "$tree/modules/base" "${base_modules[@]}"
copy_modules "$tree/modules/vlan" "${vlan_modules[@]}"

cp "$work/kernel/boot/vmlinuz-$version" "$out/vmlinuz"
(cd "$tree" && find . -print0 | LC_ALL=C sort -z | cpio --null --create --quiet --format=newc --owner=0:0) |
    gzip -1n >"$out/initramfs.cpio.gz"
printf '%s\n' "$stamp" >"$out/stamp"
say "ready: kernel $version, initramfs $(($(stat -c %s "$out/initramfs.cpio.gz") / 1024)) KiB"
