#!/bin/sh
# An in-memory SQLite database that an orbit queries while the program writes: the answers, every fault. Run by apps/run sqlite.
set -eu
cd "$(dirname "$0")/../.."
scripts/packages.sh build ports
target=${CARGO_TARGET_DIR:-$PWD/target}
make -s -C apps/sqlite/extension BUILD="$target/orbit-sqlite" TARGET="$target"
for fault in none segv hang memory recursion kill; do
    echo "== 100000 rows, 4 queries, the second one: $fault"
    LD_PRELOAD=libjemalloc.so.2 "$target/orbit-sqlite/query" 100000 4 "$fault" | cut -c1-140 | grep -v '^ '
done
