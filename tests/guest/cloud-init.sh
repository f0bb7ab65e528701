#!/usr/bin/env bash
# Boots Debian's own cloud-init in this network namespace: cloud-init.sh TREE DISK PRODUCT SERIAL UUID.
#
# The machine is a chroot: TREE (of tests/guest/debian.sh) below and DISK/upper above it, where all that the boot wrote is
# found; a second call with the same DISK is a reboot. PRODUCT, SERIAL and UUID are what its SMBIOS says, and of the machine
# around it it sees nothing but the kernel and the network. Run are ds-identify, as systemd's generator runs it, and the four
# stages. Nobody configures the network between them: eth0 must have its address before. What each stage says goes to standard
# output; the status is 0 if no stage failed. GUEST_TIMEOUT bounds it all (120 s).
set -euo pipefail

[ $# = 5 ] || { printf 'usage: %s TREE DISK PRODUCT SERIAL UUID\n' "$0" >&2; exit 64; }
tree=$1 disk=$2 product=$3 serial=$4 uuid=$5
root=$disk/root

# Mounts, the host name and the processes are this boot's alone and end with it.
if [ "${GUEST_INSIDE:-}" != 1 ]; then
    exec env GUEST_INSIDE=1 timeout --kill-after=2 "${GUEST_TIMEOUT:-120}" \
        unshare --mount --uts --pid --fork --kill-child --propagation private "$0" "$@"
fi

rm -rf "$disk/upper/run"
mkdir -p "$root" "$disk/upper" "$disk/work"
mount -t overlay -o "lowerdir=$tree,upperdir=$disk/upper,workdir=$disk/work" overlay "$root"
mount -t proc proc "$root/proc"
# No command line, no disk of the machine around it: either may name a datasource.
printf 'quiet\n' >"$disk/cmdline"
mount --bind "$disk/cmdline" "$root/proc/cmdline"
mount -t tmpfs tmpfs "$root/dev"
for device in null zero full random urandom; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
mount -t sysfs sysfs "$root/sys"
# The classes of a machine that has only what the test gives it.
mount -t tmpfs tmpfs "$root/sys/class"
mkdir -p "$root"/sys/class/{net,dmi/id} "$root/run/systemd"
for device in "$root"/sys/devices/virtual/net/*; do
    ln -s "../../devices/virtual/net/${device##*/}" "$root/sys/class/net/"
done
field() { printf '%s\n' "$2" >"$root/sys/class/dmi/id/$1"; }
field sys_vendor QEMU
field product_name "$product"
field product_serial "$serial"
field product_uuid "$uuid"
field chassis_asset_tag ''
field board_name ''

# A machine, and no container, whose SMBIOS would not be read: systemd takes any namespace of processes for one.
if [ -e "$root/usr/bin/systemd-detect-virt" ]; then
    mount --bind "$root/usr/bin/false" "$root/usr/bin/systemd-detect-virt"
fi

# Left out are modules that want hardware or an archive. What is left does all that user data of ours asks for.
cat >"$root/etc/cloud/cloud.cfg.d/99_guest.cfg" <<'CFG'
disable_network_activation: true
cloud_init_modules: [write-files, set_hostname, update_etc_hosts, users-groups, ssh]
cloud_config_modules: [set-passwords, runcmd]
cloud_final_modules: [scripts-vendor, scripts-user, final-message]
ssh_genkeytypes: []
CFG

hostname localhost
machine() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"; }

status=0
stage() {
    printf '== %s\n' "$*"
    "$@" || { printf '== %s: status %s\n' "$*" "$?"; status=1; }
}
stage machine SYSTEMD_VIRTUALIZATION=vm:kvm DI_LOG=stderr sh /usr/lib/cloud-init/ds-identify --force
stage machine cloud-init init --local
# A lease that this stage had for itself takes the interface down when it is given back.
ip link set eth0 up
stage machine cloud-init init
stage machine cloud-init modules --mode=config
stage machine cloud-init modules --mode=final
printf '== hostname %s\n' "$(hostname)"
exit "$status"
