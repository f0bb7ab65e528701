#!/usr/bin/env bash
# Runs one tier of the tests and says which and how long: tier.sh NAME COMMAND…; --begin forgets what was; --totals ends.
#
# The totals are the test runners' own lines ("test result: ok. 12 passed; …"), gathered and repeated, not counted anew.
set -euo pipefail

record=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/target/tiers
mkdir -p "$(dirname "$record")"

case ${1:-} in
    --begin) : >"$record"; exit 0 ;;
    --totals) printf '\nEvery tier passed:\n'; cat "$record"; exit 0 ;;
    '') printf 'usage: %s NAME COMMAND… | --begin | --totals\n' "$0" >&2; exit 64 ;;
esac

name=$1
shift
said=$(mktemp)
trap 'rm -f "$said"' EXIT
# cargo talks to a pipe here; if a person is reading, let it keep its colours.
if [ -t 1 ]; then export CARGO_TERM_COLOR=always; fi

printf '\n== %s: %s\n' "$name" "$*"
began=$SECONDS
status=0
"$@" 2>&1 | tee "$said" || status=$?
took=$((SECONDS - began))
if [ "$status" != 0 ]; then
    printf '== %s: FAILED after %s s (status %s)\n' "$name" "$took" "$status"
    exit "$status"
fi
printf '== %s: passed in %s s\n' "$name" "$took"
{
    printf '  %-24s %4s s\n' "$name" "$took"
    # Runners that had nothing to run say "0 passed; 0 failed": of no use to a reader.
    sed -e 's/\x1b\[[0-9;]*m//g' "$said" | grep '^test result:' | grep -v ' 0 passed; 0 failed; 0 ignored' | sed 's/^/      /' || true
} >>"$record"
