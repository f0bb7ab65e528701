#!/usr/bin/env bash
# Tries what guests may send: run.sh --check | CARGO-FUZZ OUT SECONDS [TARGET…]. Run by `make fuzz`.
#
# Each target has that many seconds to itself, begins with its corpus and what was found before (OUT/corpus/TARGET), and
# leaves an input that broke something in OUT/found. Exits 1 when there is one. --check says what this machine lacks.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() { printf 'fuzz: %s\n' "$1" >&2; exit 1; }

command -v rustup >/dev/null || die "no rustup, which the nightly compiler comes from; 'make test' tries the same properties without it"
rustup toolchain list | grep -q '^nightly' ||
    die "no nightly compiler: rustup toolchain install nightly --profile minimal ('make test' tries the same properties without it)"
command -v c++ >/dev/null || die "no C++ compiler for libFuzzer: apt-get install g++"
[ "${1:-}" != --check ] || exit 0
[ $# -ge 3 ] || die "run: make fuzz"

fuzzer=$(realpath "$1") seconds=$3
mkdir -p "$2/found"
out=$(realpath "$2")
shift 3
targets=("$@")
[ $# -gt 0 ] || for target in "$here"/fuzz_targets/*.rs; do targets+=("$(basename "$target" .rs)"); done

# cargo's own settings for the tests are not for another compiler's objects.
unset CARGO_TARGET_DIR CARGO_INCREMENTAL
export RUSTUP_TOOLCHAIN=nightly
cd "$here/../.."
"$fuzzer" fuzz build --fuzz-dir tests/fuzz --target-dir "$out/build"
host=$(rustc -vV | sed -n 's/^host: //p')

broken=0
printf '\n%-14s %9s %12s %9s %8s %9s %8s  %s\n' target seconds executions per-second edges features inputs found
for target in "${targets[@]}"; do
    mkdir -p "$out/corpus/$target"
    log=$out/$target.log status=0
    # The slowest seeds take some 50 ms: 10 s is a hang.
    "$out/build/$host/release/$target" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$out/found/$target-" "$out/corpus/$target" "$here/corpus/$target" \
        >"$log" 2>&1 || status=$?
    took=$(sed -n 's/^Done [0-9]* runs in \([0-9]*\) second.*/\1/p' "$log")
    stat() { sed -n "s/^stat::$1: *//p" "$log"; }
    # The last line of progress: "#123 DONE cov: 1 ft: 2 corp: 3/4b …".
    last() { grep -o " $1: [0-9]*" "$log" | tail -n 1 | tr -dc 0-9 || true; }
    found=-
    if [ "$status" != 0 ]; then
        broken=1
        found=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        found=${found:-see $log}
    fi
    printf '%-14s %9s %12s %9s %8s %9s %8s  %s\n' "$target" "${took:--}" "$(stat number_of_executed_units)" \
        "$(stat average_exec_per_sec)" "$(last cov)" "$(last ft)" "$(last corp)" "$found"
done
[ "$broken" = 0 ] || die "an input broke something: its log is in $out; see tests/fuzz/README.md for what becomes of it"
