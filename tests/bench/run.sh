#!/usr/bin/env bash
# Measures what design promises: run.sh PVE-IMDS SERVER COST FLOODS OUT [ROW…]. Run by `make bench`.
#
# ROW is one of cost http bulk post birth write signing pve flood memory (which includes restart); all of them by default. Rounds are
# interleaved: each takes ours and its peer one after the other, and what counts is the median of the rounds' ratios,
# so that a busy machine widens the figures more than it moves them. Every measurement is a line of OUT/raw.tsv.
# QUICK=1: fewer and shorter rounds, 200 guests instead of 1,000.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ "$(id -u)" != 0 ]; then exec sudo -E "${BASH_SOURCE[0]}" "$@"; fi
PATH=$PATH:/usr/sbin:/sbin
die() { printf 'bench: %s\n' "$1" >&2; exit 1; }
[ $# -ge 5 ] || die "run: make bench"
product=$(realpath "$1") server=$(realpath "$2") cost=$(realpath "$3") floods=$(realpath "$4")
mkdir -p "$5"
out=$(realpath "$5")
shift 5
wanted=" ${*:-cost http bulk post birth write signing pve flood memory} "

rounds=7 seconds=2 births=60 writes=12 crowd=1000 askers=64
if [ -n "${QUICK:-}" ]; then rounds=3 seconds=1 births=50 writes=4 crowd=200; fi

. "$here/world.sh"
exec 9>/run/imdsb.lock
flock -n 9 || die "another run is under way"
trap 'sweep; rm -f /run/imdsb.lock' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
raw=$out/raw.tsv
: >"$raw"

# row ROUND SIDE VALUE
note() { printf '%s\t%s\t%s\t%s\n' "$@" >>"$raw"; }
say() { printf '%s  %s  load %s\n' "$(date +%T)" "$1" "$(cut -d' ' -f1-3 /proc/loadavg)" | tee -a "$out/log" >&2; }
wants() { [[ $wanted == *" $1 "* ]]; }

# The same two CPUs for both sides of every pair: one serves, one asks.
serves=0 asks=$(($(nproc) > 1))

# --- requests

# Requests per second from a namespace: load NAMESPACE CONNECTIONS [HEADER]
load() {
    local text
    text=$(inside "$1" taskset -c "$asks" wrk -t1 -c"$2" -d"${seconds}s" --timeout 5s ${3:+-H "$3"} "http://$address/nocloud/meta-data")
    if grep -E 'Non-2xx|Socket errors' <<<"$text" >>"$out/errors"; then printf '%s\n' "$text" >>"$out/errors"; fi
    awk '$1 == "Requests/sec:" { print $2 }' <<<"$text"
}

nginx_config() {
    mkdir -p "$run/nginx/nocloud"
    answered imdsb-g101 >"$run/nginx/nocloud/meta-data"
    cat >"$run/nginx.conf" <<END
user root;
worker_processes 1;
daemon off;
pid $run/nginx.pid;
error_log stderr error;
events { worker_connections 1024; }
http {
    access_log off;
    default_type text/plain;
    sendfile on;
    tcp_nodelay on;
    keepalive_requests 1000000000;
    open_file_cache max=10;
    server { listen $address:80; root $run/nginx; }
}
END
}

http() {
    local round connections row header ours
    start "$node" taskset -c "$serves" "$server" guest "$run/config.yaml"
    local ours_pid=$daemon
    await "the guest is answered" answered imdsb-g101
    nginx_config
    start imdsb-nginx taskset -c "$serves" nginx -p "$run" -c "$run/nginx.conf"
    start imdsb-plain taskset -c "$serves" "$server" tcp "$run/config.yaml" tap101i0
    await "nginx answers" answered imdsb-cn
    await "the stack over TCP answers" answered imdsb-cp
    [ "$(answered imdsb-cn)" = "$(answered imdsb-g101)" ] || die "nginx serves other bytes"
    for ((round = 1; round <= rounds; round++)); do
        say "requests, round $round of $rounds"
        for row in 1 64 close-1 close-64; do
            connections=${row#close-}
            header=
            if [ "$row" != "$connections" ]; then header="Connection: close"; fi
            ours=$(load imdsb-g101 "$connections" "$header")
            note "nginx-$row" "$round" ours "$ours"
            note "nginx-$row" "$round" peer "$(load imdsb-cn "$connections" "$header")"
            note "plain-$row" "$round" ours "$ours"
            note "plain-$row" "$round" peer "$(load imdsb-cp "$connections" "$header")"
        done
    done
    daemon=$ours_pid
    stop
    config info
    start "$node" taskset -c "$serves" "$server" guest "$run/config.yaml"
    await "the guest is answered" answered imdsb-g101
    for ((round = 1; round <= rounds; round++)); do
        for connections in 1 64; do
            note "info-$connections" "$round" ours "$(load imdsb-g101 "$connections")"
            note "info-$connections" "$round" peer "$(load imdsb-cn "$connections")"
        done
    done
    stop
    config warn
}

# --- a guest's own traffic

# Megabits per second to or from the namespace on the bridge: stream NAMESPACE PORT [-R]
stream() {
    inside "$1" taskset -c "$asks" iperf3 -c 10.9.0.9 -p "$2" -t "$seconds" -f m "${@:3}" |
        awk '/receiver/ { for (i = 2; i <= NF; i++) if ($i == "Mbits/sec") print $(i - 1) }'
}

bulk() {
    local round port
    ip -n imdsb-g101 addr add 10.9.0.1/24 dev eth0
    plug imdsb-open open0 02:00:00:00:09:02 10.9.0.2/24
    plug imdsb-far far0 02:00:00:00:09:09 10.9.0.9/24
    start "$node" "$server" guest "$run/config.yaml"
    local guard_pid=$daemon
    await "the guest is guarded" answered imdsb-g101
    local -a ends=()
    for port in 5201 5202; do
        start imdsb-far taskset -c "$serves" iperf3 -s -p "$port"
        ends+=("$daemon")
    done
    await "the far end listens" stream imdsb-g101 5201
    for ((round = 1; round <= rounds; round++)); do
        say "bulk, round $round of $rounds"
        note bulk-up "$round" ours "$(stream imdsb-g101 5201)"
        note bulk-up "$round" peer "$(stream imdsb-open 5202)"
        note bulk-down "$round" ours "$(stream imdsb-g101 5201 -R)"
        note bulk-down "$round" peer "$(stream imdsb-open 5202 -R)"
    done
    for daemon in "$guard_pid" "${ends[@]}"; do stop; done
    ip netns del imdsb-open
    ip netns del imdsb-far
}

post() {
    local round before
    head -c 3000000 /dev/zero >"$run/3mb"
    start "$node" "$server" sink "$run/config.yaml"
    await "the sink answers" answered imdsb-g101
    for ((round = 1; round <= rounds; round++)); do
        before=$(retransmits imdsb-g101)
        note post-time "$round" ours "$(inside imdsb-g101 curl -fsS -o /dev/null -w '%{time_total}' --data-binary "@$run/3mb" "http://$address/nocloud/meta-data")"
        note post-retransmits "$round" ours $(($(retransmits imdsb-g101) - before))
    done
    stop
}
retransmits() { inside "$1" awk '$1 == "Tcp:" && !names { for (i = 2; i <= NF; i++) at[$i] = i; names = 1; next } $1 == "Tcp:" { print $at["RetransSegs"] }' /proc/net/snmp; }

# --- what takes milliseconds

# Columns of a clock's lines are rows of ours: columns ROW…
columns() {
    local -a values
    local round=0 i
    while read -ra values; do
        round=$((round + 1))
        for ((i = 1; i <= $#; i++)); do note "${!i}" "$round" ours "${values[i - 1]}"; done
    done
}

birth() {
    say "births, $births of them"
    start "$node" "$product" serve --config "$run/config.yaml"
    await "the daemon is healthy" healthy
    await "the guest is guarded" guarded 1
    "$server" births "$node" imdsb-g101 "$run/bpf" "$births" | columns birth-steer birth-both birth-ready birth-answer
    awk -F'\t' -v OFS='\t' '/^birth-/ { $1 = $1 "-50"; print }' "$raw" >"$run/halves"
    cat "$run/halves" >>"$raw"
    stop
}

write() {
    local how
    start "$node" "$server" guest "$run/config.yaml"
    await "the guest is answered" answered imdsb-g101
    for how in moved unheard; do
        say "$writes writes, $how"
        "$server" writes imdsb-g101 "$run/pve" "$how" "$writes" | columns "write-$how"
    done
    stop
}

# --- identity tokens

token="http://$address/pve-imds/jwtsvid"

# What a neighbour gets meanwhile: requests per second, and after how many milliseconds half of the answers are there.
neighbour() {
    inside imdsb-g101 taskset -c "$asks" wrk -t1 -c64 -d"${seconds}s" --timeout 5s --latency "http://$address/latest/meta-data/instance-id" |
        tee "$run/neighbour" |
        awk '$1 == "50%" { ms = $2 ~ /us$/ ? $2 / 1000 : $2 ~ /ms$/ ? $2 + 0 : $2 * 1000 } $1 == "Requests/sec:" { print $2, ms }'
    if grep -E 'Non-2xx|Socket errors' "$run/neighbour" >>"$out/errors"; then cat "$run/neighbour" >>"$out/errors"; fi
}

# What the neighbour gets, its requests per second in $rate too, while another VM does COMMAND, which goes on for a second
# longer: beside ROW ROUND SIDE [COMMAND…]
rate=
beside() {
    local row=$1 round=$2 side=$3 half pid=
    shift 3
    if [ $# -gt 0 ]; then
        inside imdsb-g102 taskset -c "$asks" timeout $((seconds + 5)) "$@" >"$run/beside" 2>&1 9>&- &
        pid=$!
        sleep 0.5
    fi
    read -r rate half < <(neighbour)
    note "$row" "$round" "$side" "$rate"
    note "$row-50" "$round" "$side" "$half"
    if [ -n "$pid" ]; then
        wait "$pid" || die "what should be beside the neighbour has ended: $(tail -n 3 "$run/beside")"
        sed "s/^/$row, round $round, $side: /" "$run/beside" >>"$out/beside"
    fi
}

# Asks for tokens as often as a VM gets some; a line with the status of each and how many seconds it took.
steadily=(curl -s -m 60 --rate 10/s -o /dev/null -w '%{http_code} %{time_total}\n' -d audience=bench)

signing() {
    local round i before alone hammered
    world 101 102 $(seq 201 $((200 + askers)))
    openssl genrsa -out "$run/pve/nodes/bench/pve-ssl.key" 2048 2>>"$run/log"
    guest 101
    guest 102
    printf 'wrk.method = "POST"\nwrk.body = "audience=bench"\nwrk.headers["Content-Type"] = "application/x-www-form-urlencoded"\n' >"$run/tokens.lua"
    start "$node" taskset -c "$serves" "$server" guest "$run/config.yaml"
    await "the guest is answered" answered imdsb-g101
    await "the other guest gets a token" inside imdsb-g102 curl -sf --max-time 1 -o "$run/token" -d audience=bench "$token"
    : >"$out/beside"
    for ((round = 1; round <= rounds; round++)); do
        say "tokens beside a neighbour, round $round of $rounds"
        beside sign-allowed "$round" ours "${steadily[@]}" "$token?[1-$(((seconds + 1) * 10))]"
        beside sign-allowed "$round" peer
        alone=$rate
        beside sign-hammer "$round" ours wrk -t1 -c64 -d$((seconds + 1)) -s "$run/tokens.lua" "$token"
        hammered=$rate
        beside sign-hammer "$round" peer wrk -t1 -c64 -d$((seconds + 1)) "http://$address/latest/meta-data/instance-id"
        note sign-alone "$round" ours "$hammered"
        note sign-alone "$round" peer "$alone"
    done
    for ((i = 201; i <= 200 + askers; i++)); do guest $i; done
    await "all are guarded" guarded $((askers + 2))
    for ((i = 201; i <= 200 + askers; i++)); do await "VM $i is answered" answered "imdsb-g$i"; done
    for ((round = 1; round <= rounds; round++)); do
        say "$askers VMs ask for tokens, round $round of $rounds"
        local -a asking=()
        before=$(spent)
        for ((i = 201; i <= 200 + askers; i++)); do
            inside "imdsb-g$i" taskset -c "$asks" "${steadily[@]}" "$token?[1-$((seconds * 30))]" >"$run/asked-$i" 9>&- &
            asking+=($!)
        done
        wait "${asking[@]}"
        before=$(($(spent) - before))
        sort -n -k 2 "$run"/asked-* >"$run/asked"
        note sign-core "$round" ours "$(awk -v ns="$before" '$1 == 200 { n++ } END { print n / ns * 1e9 }' "$run/asked")"
        note sign-refused "$round" ours "$(awk '$1 != 200 { n++ } END { print n + 0 }' "$run/asked")"
        note sign-wait "$round" ours "$(awk '{ took[NR] = $2 } END { print took[int(NR * 0.99)] * 1000 }' "$run/asked")"
    done
    stop
}

# Nanoseconds that the daemon has worked.
spent() { cat /proc/"$daemon"/task/*/schedstat | awk '{ sum += $1 } END { printf "%.0f\n", sum }'; }

# --- two thousand VMs in the cluster

# Nanoseconds that the thread which reads configurations has worked.
worked() { cut -d' ' -f1 "$(grep -lx pve-files /proc/"$daemon"/task/*/comm | sed 's/comm$/schedstat/')"; }

pve() {
    local round how before began
    world 101 $(seq 2001 3999)
    guest 101
    start "$node" "$server" guest "$run/config.yaml"
    await "the guest is answered" answered imdsb-g101
    for ((round = 1; round <= rounds; round++)); do
        say "a cluster of 2,000 at rest, round $round of $rounds"
        before=$(worked)
        began=$(date +%s%N)
        sleep 5
        # A look every half second.
        note pve-poll "$round" ours "$(awk "BEGIN { print ($(worked) - $before) / (($(date +%s%N) - $began) / 5e8) / 1e6 }")"
    done
    for how in moved unheard; do
        say "$writes writes among 2,000, $how"
        "$server" writes imdsb-g101 "$run/pve" "$how" "$writes" | columns "pve-$how"
    done
    stop
}

# --- a thousand guests

# A world of its own: the test of the kernel tier, built as what is measured here. It fails if a request does.
flood() {
    "$floods" --exact floods::a_neighbour_is_served_through_every_flood_and_so_is_the_flooder_afterwards --nocapture >"$out/floods"
    sed -nE 's/.*\b(segments|supers|syns) +at port (8[01]): .*p99 ([0-9.]+) ms.*/\1 \2 \3/p' "$out/floods" |
        while read -r kind port p99; do
            note "flood-$kind" 1 "$([ "$port" = 80 ] && echo ours || echo peer)" "$p99"
        done
}

# KiB of the kernel's own: what grows when programs, links, maps and pins are made.
kernel() { awk '$1 ~ /^(Slab|Percpu|VmallocUsed):$/ { sum += $2 } END { print sum }' /proc/meminfo; }
resident() { awk '$1 == "VmRSS:" { print $2 }' "/proc/$1/status"; }

memory() {
    local i before base all first=2000 sampled=() began
    world $(seq 101 108) $(seq $first $((first + crowd - 1)))
    sleep 1
    before=$(kernel)
    start "$node" "$product" serve --config "$run/config.yaml"
    await "the daemon is healthy" healthy
    sleep 2
    base=$(($(resident "$daemon") + $(kernel) - before))
    printf 'base: resident %s KiB, kernel %s KiB\n' "$(resident "$daemon")" $(($(kernel) - before)) >>"$out/log"
    note memory-base 1 ours "$(awk "BEGIN { print $base / 1024 }")"
    stop

    say "$crowd guests"
    seq $first $((first + crowd - 1)) | awk '{ t = "tap" $1 "i0"; print "tuntap add " t " mode tap"; print "link set " t " up master vmbr0" }' >"$run/batch"
    ip -n "$node" -batch "$run/batch"
    sleep 1
    before=$(kernel)
    start "$node" "$product" serve --config "$run/config.yaml"
    began=$(date +%s)
    await "all guests are guarded" guarded "$crowd"
    say "all guarded after $(($(date +%s) - began)) s"
    sleep 2
    all=$(($(resident "$daemon") + $(kernel) - before))
    printf '%s guests: resident %s KiB, kernel %s KiB\n' "$crowd" "$(resident "$daemon")" $(($(kernel) - before)) >>"$out/log"
    note memory-all 1 ours "$(awk "BEGIN { print $all / 1024 }")"
    note memory-guest 1 ours "$(awk "BEGIN { print ($all - $base) / $crowd }")"

    say "restarts"
    for ((i = 101; i <= 108; i++)); do
        guest $i
        ip -n "imdsb-g$i" neigh replace $address lladdr 02:00:a9:fe:a9:fe dev eth0
        sampled+=("imdsb-g$i")
    done
    await "the sampled guests are guarded" guarded $((crowd + 8))
    stop
    "$server" restart "$node" "$rounds" "${sampled[@]}" -- "$product" serve --config "$run/config.yaml" 2>>"$run/log" |
        columns restart-first restart-last
}

# ---

: >"$out/log"
: >"$out/errors"
say "begin"
if wants cost; then
    "$cost" | tee "$out/cost" | awk '$1 == "TCP" || $1 == "IPv6" || $1 == "ARP" { print $1 " " $2, $(NF - 1) + 0, $NF + 0 }' >"$out/cost.short"
    note cost-steer 1 ours "$(awk '$1 == "TCP" { print $3 }' "$out/cost.short")"
    note cost-shield 1 ours "$(awk '$1 == "TCP" { print $4 }' "$out/cost.short")"
    note cost-worst 1 ours "$(awk '$1 != "TCP" { for (i = NF - 1; i <= NF; i++) if (max == "" || $i > max) max = $i } END { print max }' "$out/cost.short")"
fi
world 101
guest 101
link imdsb-cn imdsb-nginx
link imdsb-cp imdsb-plain
for row in http bulk post birth write signing pve flood memory; do
    if wants $row; then $row; fi
done
say "end"

printf '\n%s\n%s CPUs, %s, kernel %s; load at the end %s; %s rounds%s\n\n' \
    "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(awk '$1 == "MemTotal:" { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)" \
    "$(uname -r)" "$(cut -d' ' -f1-3 /proc/loadavg)" "$rounds" "${QUICK:+ (QUICK)}" >"$out/table"
awk -f "$here/table.awk" "$here/rows.tsv" "$raw" >>"$out/table"
cat "$out/table"
if [ -s "$out/errors" ]; then printf '\nwrk saw errors: %s\n' "$out/errors"; fi
