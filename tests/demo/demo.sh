#!/usr/bin/env bash
# A node, two virtual machines and a liar on their bridge: demo.sh [PVE-IMDS-BINARY]. Run by `make demo`.
#
# Everything lives in two network namespaces (imdsd, imdsd-rogue) and one directory (/run/imdsd); nothing of the machine's
# own network or of /etc is touched, and all of it is gone when this ends, also by Ctrl-C. What a killed run
# left behind is swept first. Five acts: nobody guards and the liar is heard; the daemon starts; both machines get
# their own files; the daemon is killed and there is silence, not the liar; it starts again and answers. Any other
# outcome is a failure (status 1).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
binary=$(realpath -m "${1:-$root/target/debug/pve-imds}")

node=imdsd rogue=imdsd-rogue
run=/run/imdsd
seed=http://169.254.169.254/nocloud/
# Both machines claim the same address: the node tells them apart by where their frames come from.
address=169.254.1.2/16

"$root/tests/setup/machine.sh"
if [ "$(id -u)" != 0 ]; then exec sudo "${BASH_SOURCE[0]}" "$binary"; fi
PATH=$PATH:/usr/sbin:/sbin

die() { printf 'demo: %s\n' "$1" >&2; exit 1; }
[ -x "$binary" ] || die "no $binary; run: make demo"

# --- what is left when this ends: nothing

sweep() {
    local ns pids pid
    for ns in "$node" "$rogue"; do
        [ -e "/run/netns/$ns" ] || continue
        # Both namespaces are ours, and so is whatever runs in them.
        pids=$(ip netns pids "$ns")
        for pid in $pids; do kill -TERM "$pid" 2>/dev/null || true; done
        for pid in $pids; do timeout 3 tail --pid="$pid" -s 0.05 -f /dev/null || kill -KILL "$pid" 2>/dev/null || true; done
        ip netns del "$ns"
    done
    while mountpoint -q "$run/bpf"; do umount "$run/bpf"; done
    rm -rf "$run"
}

# Whatever outlives this script must not hold its lock: 9>&- below.
exec 9>/run/imdsd.lock
flock -n 9 || die "another demo is running"
trap 'sweep; rm -f /run/imdsd.lock' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
sweep
began=$SECONDS

bold=; plain=
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
act() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
in_node() { ip netns exec "$node" "$@"; }

# --- the node: /etc/pve, a bridge, one tap

# Text as Proxmox keeps it in a configuration: a `#` before each line, some characters percent-encoded.
notes() { sed -e 's/%/%25/g' -e 's/:/%3A/g' -e 's/^/#/'; }
block() { printf '<!--#%s\n%s\n-->\n' "$1" "$2"; }

mac101=bc:24:11:00:01:01 uuid101=5a1e0000-0000-4000-8000-000000000101
mac102=bc:24:11:00:01:02 uuid102=5a1e0000-0000-4000-8000-000000000102
user101='#cloud-config
hostname: web-1
runcmd:
  - echo "I am 101: only web-1 may read this"'
user102='#cloud-config
hostname: db-1
runcmd:
  - echo "I am 102: only db-1 may read this"'
network102="version: 2
ethernets:
  net0:
    match: {macaddress: \"$mac102\"}
    addresses: [192.0.2.102/24]
    routes: [{to: 0.0.0.0/0, via: 192.0.2.1}]"

mkdir -p "$run"/{bpf,logs} "$run/pve/nodes/demo/qemu-server" "$run/liar/nocloud"
ln -s nodes/demo "$run/pve/local"
ln -s nodes/demo/qemu-server "$run/pve/qemu-server"
cat >"$run/pve/.version" <<END
{ "starttime": 1, "clinfo": 1, "vmlist": 1, "kvstore": {} }
END
cat >"$run/pve/.vmlist" <<END
{ "version": 1, "ids": { "101": { "node": "demo", "type": "qemu", "version": 1 }, "102": { "node": "demo", "type": "qemu", "version": 2 } } }
END
cat >"$run/pve/.members" <<END
{ "nodename": "demo", "version": 0 }
END
{
    block user-data "$user101" | notes
    printf '%s\n' "memory: 256" "name: web-1" "net0: virtio=${mac101^^},bridge=vmbr0" "ostype: l26" "smbios1: uuid=$uuid101"
} >"$run/pve/nodes/demo/qemu-server/101.conf"
{
    { echo "The database."; block user-data "$user102"; block network-config "$network102"; } | notes
    printf '%s\n' "memory: 256" "name: db-1" "net0: virtio=${mac102^^},bridge=vmbr0" "ostype: l26" "smbios1: uuid=$uuid102"
} >"$run/pve/nodes/demo/qemu-server/102.conf"

cat >"$run/config.yaml" <<END
pve_dir: $run/pve
node_name: demo
management:
  listen: 127.0.0.1:9100
datapath:
  pin_dir: $run/bpf
  device_prefix: imdsd-
END

ip netns add "$node"
ip netns add "$rogue"
ip -n "$node" link set lo up
ip -n "$node" link add vmbr0 type bridge
ip -n "$node" link set vmbr0 up
mount -t bpf imdsd "$run/bpf"

# As qemu-server does it: the tap appears, comes up and joins the bridge.
plug() {
    in_node ip tuntap add "$1" mode tap
    ip -n "$node" link set "$1" up
    ip -n "$node" link set "$1" master vmbr0
}
plug tap101i0

# --- the liar: another port of the bridge, the same address, an answer to everything

ip -n "$node" link add rogue0 type veth peer name eth0 netns "$rogue"
ip -n "$node" link set rogue0 up master vmbr0
ip -n "$rogue" link set lo up
ip -n "$rogue" link set eth0 up
ip -n "$rogue" addr add 169.254.169.254/16 dev eth0
for file in meta-data user-data vendor-data network-config; do echo "LIAR: $file of somebody else" >"$run/liar/nocloud/$file"; done
(cd "$run/liar" && exec ip netns exec "$rogue" busybox httpd -f -vv -p 169.254.169.254:80 -h "$run/liar") 2>"$run/logs/liar" 9>&- &
# It also tells everybody, every second, that the address is its own.
ip netns exec "$rogue" busybox arping -q -A -I eth0 169.254.169.254 >/dev/null 2>&1 9>&- &

liar_answered() { grep -c 'response:' "$run/logs/liar" || true; }

# --- the machines

# machine VMID MAC LOG ORDERS: a real one; its console is shown and kept.
machine() {
    in_node "$root/tests/guest/boot.sh" "tap${1}i0" "$2" - "imds.ip=$address imds.url=$seed $4" 2>&1 |
        tee "$run/logs/$3" | sed -u "s/^/vm$1 | /"
}

# --- the daemon

on_node() { in_node curl -fsS --max-time 1 "http://127.0.0.1:9100/$1" 2>/dev/null; }

daemon=
start_daemon() {
    local tries
    ip netns exec "$node" "$binary" serve --config "$run/config.yaml" >>"$run/logs/daemon" 2>&1 9>&- &
    daemon=$!
    for ((tries = 0; tries < 100; tries++)); do
        if on_node healthz >/dev/null; then return; fi
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.1
    done
    sed 's/^/node  | /' "$run/logs/daemon"
    die "the daemon does not become healthy (above, what it said)"
}

# How many of the liar's announcements the guard kept from the machines.
refused() { on_node metrics | sed -n 's/^pve_imds_guard_frames_total{reason="shield_claim_arp"} //p'; }

# --- what must be true

# said LOG FILE: the bytes between the marks, as the machine showed them.
said() { sed -n "/^=== $2\$/,/^=== end $2 /p" "$run/logs/$1" | sed -e 1d -e '$d'; }

verdicts=() failed=0
verdict() {
    local word=no
    if "${@:2}"; then word=yes; else failed=1; fi
    verdicts+=("$(printf '%-74s %s' "$1" "$word")")
}
is() { [ "$1" = "$2" ]; }
has() { grep -qF -- "$2" "$run/logs/$1"; }
lacks() { [ -s "$run/logs/$1" ] && ! grep -qF -- "$2" "$run/logs/$1"; }
names() { is "$(said "$1" meta-data | grep -F "instance-id" | grep -cF "$2")$(said "$1" meta-data | grep -F "local-hostname" | grep -cF "$3")" 11; }
leases() { is "$(said "$1" network-config | grep -ciF "$2")$(said "$1" network-config | grep -c 'dhcp4: *true')" 11; }

act "1. Nobody guards: machine 101 asks for its metadata, and whoever answers first is believed"
machine 101 "$mac101" unguarded "imds.files=meta-data,user-data" 9>&- &
wait $! || true
verdict "without pve-imds the liar is heard (else the rest proves nothing)" has unguarded "LIAR: user-data"
answered=$(liar_answered)
verdict "and its own log shows that it was asked" [ "$answered" -gt 0 ]

act "2. The daemon starts on the node; the liar stays where it is"
start_daemon
# The second machine's interface is born under its eyes.
plug tap102i0
in_node "$binary" taps --config "$run/config.yaml" | sed 's/^/node  | /'

act "3. Both machines boot, with the same address, and ask"
machine 101 "$mac101" vm101 "" 9>&- &
first=$!
machine 102 "$mac102" vm102 "" 9>&- &
second=$!
wait "$first" "$second" || true

claims=$(refused || true)
printf 'node  | announcements of the liar that the guard refused: %s\n' "$claims"

for vm in 101 102; do
    verdict "machine $vm got all four files" has "vm$vm" "IMDS-GUEST done status=0"
    verdict "machine $vm never heard the liar" lacks "vm$vm" "LIAR"
done
verdict "machine 101 is web-1, by its own UUID" names vm101 "$uuid101" web-1
verdict "machine 102 is db-1, by its own UUID" names vm102 "$uuid102" db-1
verdict "machine 101 got the user data of its own Notes, byte for byte" is "$(said vm101 user-data)" "$user101"
verdict "machine 102 got the user data of its own Notes, byte for byte" is "$(said vm102 user-data)" "$user102"
verdict "machine 101 has no network block: DHCP on its own card" leases vm101 "$mac101"
verdict "machine 102 got its network block as written" is "$(said vm102 network-config)" "$network102"
verdict "the guard refused the liar's announcements" [ "${claims:-0}" -gt 0 ]
verdict "vendor data is empty for both" is "$(said vm101 vendor-data)$(said vm102 vendor-data)" ""

act "4. The daemon is killed (-9): machine 101 asks again"
kill -KILL "$daemon"
wait "$daemon" 2>/dev/null || true
machine 101 "$mac101" orphan "imds.files=meta-data imds.tries=1" 9>&- &
wait $! || true
verdict "without the daemon there is silence" has orphan "file=meta-data failed"
verdict "and not the liar" lacks orphan "LIAR"

act "5. The daemon starts again: so does the service"
start_daemon
machine 101 "$mac101" again "imds.files=meta-data" 9>&- &
wait $! || true
verdict "after a restart machine 101 is web-1 again" names again "$uuid101" web-1
verdict "from the guard's first moment to the end the liar was asked nothing" is "$(liar_answered)" "$answered"

act "What was seen, in $((SECONDS - began)) s"
printf '  %s\n' "${verdicts[@]}"
if [ "$failed" = 0 ]; then
    printf '\nAll as promised: only itself, only us.\n'
else
    printf '\nNot as promised. What the daemon said:\n'
    sed 's/^/node  | /' "$run/logs/daemon" | tail -n 50
fi
exit "$failed"
