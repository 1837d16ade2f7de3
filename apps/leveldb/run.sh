#!/bin/sh
# LevelDB 1.23 of Debian with its compaction in an orbit: the same writes with stock, every fault of the orbit, the hash of the
# contents. Run by apps/run leveldb.
set -eu
cd "$(dirname "$0")/../.."
scripts/packages.sh build ports
target=${CARGO_TARGET_DIR:-$PWD/target}
build=$target/orbit-leveldb
make -s -C apps/leveldb/extension BUILD="$build" TARGET="$target" all load

here=$(mktemp -d /tmp/orbit-leveldb-run.XXXXXX)
trap 'rm -rf "$here"' EXIT
trap 'exit 130' INT TERM HUP PIPE
field() { sed -n "s/^$1 //p" "$here/said"; }

"$build/load-stock" "$here/stock" writes 1 100000 none 0 >"$here/said"
stock=$(field hash)
echo "== 100000 writes"
echo "stock      hash $stock, $(field cpu_ms) ms of CPU, writers' p99.9 $(field write_p999_us) us"
for fault in "none 0" "segv 1" "hang 1" "memory 1" "recursion 1" "wrong 1" "segv 3" "kill 2" "minor-segv 1" "minor-kill 2"; do
    name=${fault% *}
    rm -rf "$here/db"
    # shellcheck disable=SC2086  # two words
    "$build/load" "$here/db" writes 1 100000 $fault >"$here/said"
    printf '%-10s hash %s, %s ms of CPU, writers'"'"' p99.9 %s us; compactions: %s in the orbit, %s failed tries, %s own; memtables: %s, %s, %s\n' \
        "$name" "$(field hash)" "$(field cpu_ms)" "$(field write_p999_us)" "$(field compactions)" "$(field failures)" \
        "$(field own)" "$(field minor)" "$(field minor_failures)" "$(field minor_own)"
    [ "$(field hash)" = "$stock" ] || { echo "the contents differ from stock" >&2 && exit 1; }
    grep -h 'orbit: ' "$here/db/LOG" | sed 's/^[^ ]* [^ ]* /           LOG: /' | cut -c1-240 | sort | uniq | head -3
    "$build/load-stock" "$here/db" check >"$here/said"
    [ "$(field hash)" = "$stock" ] || { echo "stock reopens it otherwise" >&2 && exit 1; }
done
echo "all the same, reopened by stock too"
