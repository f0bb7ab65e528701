#!/usr/bin/env bash
# What Debian's own cloud-init makes of OpenStack's network data: network-data.sh TREE DOCUMENT SCHEMA NAME,MAC...
#
# TREE is one of tests/guest/debian.sh, DOCUMENT a network_data.json, SCHEMA the JSON schema it must have, and each NAME,MAC
# a card of the machine. Behind "== networkd", "== netplan" and "== eni" on standard output stand the files that each of
# cloud-init's writers made. If TREE has ifupdown, that then sets up eth0 and its VLANs by the last of them, and behind
# "== routes" stand the default routes that the kernel has. The cards are in a network namespace that nothing leads out of,
# and the tree is as it was: all is written into memory that ends with the script.
set -euo pipefail

[ $# -ge 4 ] || { printf 'usage: %s TREE DOCUMENT SCHEMA NAME,MAC...\n' "$0" >&2; exit 64; }
tree=$1 document=$2 schema=$3
cards=("${@:4}")

if [ "${GUEST_INSIDE:-}" != 1 ]; then
    exec env GUEST_INSIDE=1 timeout --kill-after=2 "${GUEST_TIMEOUT:-60}" \
        unshare --mount --net --pid --fork --kill-child --propagation private "$0" "$@"
fi

machine() { chroot "$tree" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"; }

# No /sys: cloud-init is told which cards there are, and would find others there.
mount -t tmpfs tmpfs "$tree/mnt"
mount -t tmpfs tmpfs "$tree/run"
mount -t proc proc "$tree/proc"
cp "$document" "$tree/mnt/document"
cp "$schema" "$tree/mnt/schema"
# What networkd's writer gives its files to; Debian 12 has no such user before networkd is switched on.
cp "$tree/etc/passwd" "$tree/mnt/passwd"
cp "$tree/etc/group" "$tree/mnt/group"
grep -q ^systemd-network: "$tree/mnt/passwd" || {
    printf 'systemd-network:x:998:998::/:/usr/sbin/nologin\n' >>"$tree/mnt/passwd"
    printf 'systemd-network:x:998:\n' >>"$tree/mnt/group"
}
mount --bind "$tree/mnt/passwd" "$tree/etc/passwd"
mount --bind "$tree/mnt/group" "$tree/etc/group"

machine python3 - <<'CHECK'
import json
import jsonschema
document, schema = (json.load(open("/mnt/" + name)) for name in ("document", "schema"))
jsonschema.Draft7Validator.check_schema(schema)
jsonschema.validate(document, schema, format_checker=jsonschema.FormatChecker())
CHECK

for writer in networkd netplan eni; do
    printf '== %s\n' "$writer"
    machine cloud-init devel net-convert --network-data /mnt/document --kind network_data.json --distro debian \
        "${cards[@]/#/--mac=}" --output-kind "$writer" --directory "/mnt/$writer" >"$tree/mnt/said" 2>&1 ||
        { cat "$tree/mnt/said" >&2; exit 1; }
    find "$tree/mnt/$writer" -type f ! -name '*.rules' -exec cat {} +
done

[ -x "$tree/sbin/ifup" ] || exit 0
find "$tree/mnt/eni" -path '*/interfaces*' -type f -exec cp {} "$tree/run/interfaces" \;
mkdir "$tree/run/network"
ip link set lo up
ip link add eth0 type veth peer name far
ip link set far up
machine ifup --interfaces=/run/interfaces --state-dir=/run/network eth0 >&2
printf '== routes\n'
{ ip -4 route show default; ip -6 route show default; } | awk '{ print $1, $2, $3 }'
