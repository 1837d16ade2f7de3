#!/bin/sh
# Measures: the crates' benches, then the command's own, then Redis with and without an orbit. Takes minutes; run nothing
# else meanwhile.
#
#   scripts/bench.sh
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh build bench
cargo bench --workspace --benches
if cargo tree -p orbit-cli --depth 0 >/dev/null 2>&1; then
    cargo run --quiet --release -p orbit-cli -- bench
fi
if [ -x scripts/redis-bench.sh ]; then
    scripts/redis-bench.sh
fi
