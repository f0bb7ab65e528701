#!/usr/bin/env bash
# Boots Debian's own cloud-init in this network namespace: cloud-init.sh TREE DISK SMBIOS.
#
# The machine is a chroot (chroot.sh): TREE (of tests/guest/debian.sh) below and DISK/upper above it; a second call with the
# same DISK is a reboot. Run are ds-identify, as systemd's generator runs it, and the four stages. Nobody configures the
# network between them: eth0 must have its address before. What each stage says goes to standard output; the status is 0 if
# no stage failed. GUEST_TIMEOUT bounds it all (120 s).
set -euo pipefail

[ $# = 3 ] || { printf 'usage: %s TREE DISK SMBIOS\n' "$0" >&2; exit 64; }
. "$(dirname "${BASH_SOURCE[0]}")/chroot.sh"
alone "$@"
enter "$@"

# Left out are modules that want hardware or an archive. What is left does all that user data of ours asks for.
cat >"$root/etc/cloud/cloud.cfg.d/99_guest.cfg" <<'CFG'
disable_network_activation: true
cloud_init_modules: [write-files, set_hostname, update_etc_hosts, users-groups, ssh]
cloud_config_modules: [set-passwords, runcmd]
cloud_final_modules: [scripts-vendor, scripts-user, final-message]
ssh_genkeytypes: []
CFG

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
