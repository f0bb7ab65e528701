# Sourced by what plays a machine in a chroot, in this network namespace: `enter TREE DISK SMBIOS`, then `machine COMMAND…`.
#
# TREE is below and DISK/upper above it, where all that the machine wrote is found; a second entry with the same DISK is a
# reboot. Of the machine around it it sees nothing but the kernel and the network. SMBIOS are QEMU's words for the type 1
# table: serial=…,product=…,uuid=…, each of them or none. Call `alone "$@"` first: it starts the script anew with mounts, a
# host name and processes that are its own and end with it, at the latest after GUEST_TIMEOUT seconds (120).

alone() {
    [ "${GUEST_INSIDE:-}" != 1 ] || return 0
    exec env GUEST_INSIDE=1 timeout --kill-after=2 "${GUEST_TIMEOUT:-120}" \
        unshare --mount --uts --pid --fork --kill-child --propagation private "$0" "$@"
}

enter() {
    local tree=$1 disk=$2 smbios=$3 device
    root=$disk/root
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
    field sys_vendor QEMU
    field product_name "$(smbios product 'Standard PC (i440FX + PIIX, 1996)')"
    field product_serial "$(smbios serial '')"
    field product_uuid "$(smbios uuid 00000000-0000-4000-8000-000000000000)"
    field chassis_asset_tag ''
    field board_name ''
    # A chroot is a container in part, and systemd sees that; cloud-init asks it, and in containers reads no SMBIOS.
    if [ -e "$root/usr/bin/systemd-detect-virt" ]; then
        printf '#!/bin/sh\ncase "$*" in *container*) exit 1 ;; *) echo kvm ;; esac\n' >"$root/usr/bin/systemd-detect-virt"
    fi
    hostname localhost
}

field() { printf '%s\n' "$2" >"$root/sys/class/dmi/id/$1"; }

# The word behind this name, else the one given.
smbios() {
    local words word found=$2
    IFS=, read -ra words <<<"$smbios"
    for word in ${words[@]+"${words[@]}"}; do
        case $word in "$1="*) found=${word#*=} ;; esac
    done
    printf '%s' "$found"
}

machine() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"; }
