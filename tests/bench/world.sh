# The world of the benchmarks: a node, guests and peers in network namespaces. Sourced by run.sh.
#
# Everything that the kernel keeps carries the prefix imdsb and is swept first and last; whatever runs in those
# namespaces is ours. No frame leaves them.

node=imdsb
run=/run/imdsb
address=169.254.169.254

sweep() {
    local ns pids pid
    for ns in $(ip netns list | awk '$1 == "imdsb" || $1 ~ /^imdsb-/ { print $1 }'); do
        pids=$(ip netns pids "$ns")
        for pid in $pids; do kill -KILL "$pid" 2>/dev/null || true; done
        for pid in $pids; do timeout 3 tail --pid="$pid" -s 0.02 -f /dev/null || true; done
        ip netns del "$ns"
    done
    while mountpoint -q "$run/bpf"; do umount "$run/bpf"; done
    rm -rf "$run"
}

inside() { local ns=$1; shift; ip netns exec "$ns" "$@"; }

namespace() { ip netns add "$1"; ip -n "$1" link set lo up; }

mac() { printf 'bc:24:11:00:%02x:%02x' $(($1 >> 8)) $(($1 & 255)); }

# A node with a bridge and the configurations of these VMIDs.
world() {
    sweep
    mkdir -p "$run"/{bpf,pve/nodes/bench/qemu-server}
    mount -t bpf imdsb "$run/bpf"
    ln -s nodes/bench "$run/pve/local"
    ln -s nodes/bench/qemu-server "$run/pve/qemu-server"
    printf '%s\n' "$@" | awk -v dir="$run/pve" '
        { file = dir "/qemu-server/" $1 ".conf"
          printf "memory: 512\nname: name%04d\n", $1 >file
          printf "net0: virtio=BC:24:11:00:%02X:%02X,bridge=vmbr0\nostype: l26\n", int($1 / 256) % 256, $1 % 256 >file
          printf "smbios1: uuid=00000000-0000-4000-8000-%012d\n", $1 >file
          close(file)
          ids = ids (NR > 1 ? ", " : "") "\"" $1 "\": { \"node\": \"bench\", \"type\": \"qemu\", \"version\": " NR " }" }
        END { printf "{ \"version\": %d, \"ids\": { %s } }\n", NR, ids >(dir "/.vmlist")
              printf "{ \"starttime\": 1, \"vmlist\": %d, \"user.cfg\": 0, \"datacenter.cfg\": 0 }\n", NR >(dir "/.version") }'
    config warn
    namespace "$node"
    ip -n "$node" link add vmbr0 type bridge
    ip -n "$node" link set vmbr0 up
}

# The daemon's configuration, with this log level.
config() {
    cat >"$run/config.yaml" <<END
pve_dir: $run/pve
node_name: bench
log_level: $1
management:
  listen: 127.0.0.1:9100
datapath:
  pin_dir: $run/bpf
  device_prefix: imdsb-
  accept_kinds: [tun, veth]
END
}

# A namespace on the bridge, through this port: plug NAMESPACE PORT MAC ADDRESS
plug() {
    namespace "$1"
    ip -n "$node" link add "$2" type veth peer name eth0 netns "$1"
    ip -n "$node" link set "$2" up master vmbr0
    ip -n "$1" link set eth0 address "$3" up
    ip -n "$1" addr add "$4" dev eth0
}

guest() { plug "imdsb-g$1" "tap$1i0" "$(mac "$1")" "169.254.1.2/16"; }

# Two namespaces and a veth pair between them; the metadata address is the second's: link CLIENT SERVER
link() {
    namespace "$1"
    namespace "$2"
    ip -n "$2" link add eth0 type veth peer name eth0 netns "$1"
    ip -n "$2" link set eth0 up
    ip -n "$1" link set eth0 up
    ip -n "$2" addr add $address/16 dev eth0
    ip -n "$1" addr add 169.254.1.2/16 dev eth0
}

# Starts a server in a namespace: start NAMESPACE COMMAND…; `stop` ends the one in $daemon.
daemon=
start() {
    ip netns exec "$@" >>"$run/log" 2>&1 9>&- &
    daemon=$!
    # The shell has nothing to say when it is killed.
    disown
}
stop() {
    kill -KILL "$daemon"
    timeout 5 tail --pid="$daemon" -s 0.02 -f /dev/null
}

# Waits for what must become true: await WHAT COMMAND…
await() {
    local what=$1 tries
    shift
    for ((tries = 0; tries < 6000; tries++)); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.02
    done
    tail -n 20 "$run/log" >&2
    die "never happened: $what"
}

answered() { inside "$1" curl -fs --max-time 1 "http://$address/nocloud/meta-data"; }
healthy() { inside "$node" curl -fs --max-time 1 http://127.0.0.1:9100/healthz; }
guarded() { [ "$(find "$run/bpf" -name '*-shield' | wc -l)" -ge "$1" ]; }
