#!/bin/sh
# Redis 7.0 of Debian with its background save in an orbit: saves while clients write, crashes of the save, and what a stock
# server loads from the file. Run by apps/run redis-rdb.
set -eu
cd "$(dirname "$0")/../.."
scripts/packages.sh build demo
target=${CARGO_TARGET_DIR:-$PWD/target}
make -s -C apps/redis-rdb/extension BUILD="$target/orbit-redis-rdb" TARGET="$target"
module=$target/orbit-redis-rdb/orbit_rdb.so

here=$(mktemp -d /tmp/orbit-rdb-run.XXXXXX)
pids=
end() {
    for pid in $pids; do kill -9 "$pid" 2>"$here/kill" || true; done
    rm -rf "$here"
}
trap end EXIT
trap 'exit 130' INT TERM HUP PIPE
redis() { redis-cli -s "$here/$1" $2; }
up() { until redis "$1" PING >"$here/ping" 2>&1; do is_up && sleep 0.1; done; }
is_up() { kill -0 "${pids##* }" 2>"$here/ping" || { echo "redis-server has ended:" >&2 && cat "$here"/log* >&2 && exit 1; }; }
saved() { until redis s "INFO persistence" | grep -q rdb_bgsave_in_progress:0; do sleep 0.1; done; }
field() { redis s "INFO $1" | sed -n "s/^$2:\([^\r]*\).*/\1/p"; }

(cd "$here" && LD_PRELOAD=$module exec redis-server --port 0 --unixsocket s --save "" --enable-module-command yes \
    --enable-debug-command yes --loadmodule "$module" faults yes deadline 20 memory 256) >"$here/log" 2>&1 &
server=$!
pids=$server
up s
redis s "DEBUG POPULATE 300000 key 500" >"$here/said"
echo "== Redis $(field server redis_version), pid $server, $(field memory used_memory_human)"
echo "== saves while a client writes 2000 keys each time"
for round in 1 2 3; do
    redis s BGSAVE >"$here/said"
    i=0
    while [ $i -lt 2000 ]; do i=$((i + 1)); echo "SET key:$i round$round"; done | redis-cli -s "$here/s" >"$here/said"
    saved
    echo "save $round: $(field persistence rdb_last_bgsave_status), Redis was delayed $(field stats latest_fork_usec) us"
done
# A save, once the orbit is back: until then Redis would fork.
save() {
    while [ "$(redis s "ORBIT.RDB INFO" | sed -n 's/^orbit_pid:\([0-9]*\).*/\1/p')" = 0 ]; do sleep 0.1; done
    redis s BGSAVE >"$here/said"
}
echo "== the save crashes; after each the next save"
for fault in segv hang memory recursion abort kill; do
    [ $fault = kill ] || redis s "ORBIT.RDB FAULT $fault" >"$here/said"
    save
    [ $fault != kill ] || kill -9 "$(redis s "ORBIT.RDB INFO" | sed -n 's/^orbit_pid:\([0-9]*\).*/\1/p')"
    saved
    printf '%-10s %s; ' "$fault" "$(field persistence rdb_last_bgsave_status)"
    redis s "ORBIT.RDB INFO" | grep last_failure
    save
    saved
    echo "           next save: $(field persistence rdb_last_bgsave_status); pid $(field server process_id)"
done
grep -A 3 'crashed: SIGSEGV at 0x0' "$here/log"
redis s "ORBIT.RDB INFO" | grep -E '^(saves|failed|forks):'
echo "== a stock server loads the file"
mkdir "$here/stock"
cp "$here/dump.rdb" "$here/stock/"
(cd "$here/stock" && exec redis-server --port 0 --unixsocket ../t --save "" --enable-debug-command yes) >"$here/log2" 2>&1 &
pids="$pids $!"
up t
until redis t "INFO persistence" | grep -q loading:0; do sleep 0.1; done
echo "here  $(redis s "DEBUG DIGEST")"
echo "there $(redis t "DEBUG DIGEST")"
[ "$(redis s "DEBUG DIGEST")" = "$(redis t "DEBUG DIGEST")" ] && echo "the same"
