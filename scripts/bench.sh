#!/bin/sh
# Measures: what orbits cost (the command's own benches), then Redis with and without one. Takes some minutes; run nothing
# else meanwhile.
#
#   scripts/bench.sh [--quick]          --quick: fewer sizes and samples, and Redis left out
#
# Results as JSON and as plots are kept in target/bench; copied into docs/measurements they make the page, by
# `orbit bench page docs/measurements/*.json > docs/measurements.md`. One that cannot be measured here (bench pins needs root)
# does not stop the others; the exit status is 1 then.
set -eu
cd "$(dirname "$0")/.."
quick=
case ${1:-} in
'') ;;
--quick) quick=--quick ;;
*)
    echo "usage: scripts/bench.sh [--quick]" >&2
    exit 2
    ;;
esac
scripts/packages.sh build bench
TARGET=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release -p orbit-cli -p orbit-bench
results=$TARGET/bench
ORBIT_COMMIT=$(git rev-parse --short HEAD 2>/dev/null || true)
export ORBIT_COMMIT
mkdir -p "$results"

failed=
for what in create call incremental write delegate pins; do
    echo "orbit bench $what $quick"
    # shellcheck disable=SC2086  # an option, or none
    "$TARGET/release/orbit" bench $what $quick --json "$results/$what.json" --plot "$results/$what.svg" ||
        failed="$failed $what"
    echo
done
[ -n "$quick" ] || scripts/redis-bench.sh --json "$results/redis.json" || failed="$failed redis"
echo "results: $results"
[ -z "$failed" ] || { echo "not measured:$failed" >&2; exit 1; }
