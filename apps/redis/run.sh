#!/bin/sh
# Redis 7.0 of Debian with its slow log in an orbit: slow commands while a client writes, every fault of the task, and the log
# beside Redis' own. Run by apps/run redis.
set -eu
cd "$(dirname "$0")/../.."
scripts/packages.sh build demo
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --quiet --release -p orbit-redis

here=$(mktemp -d /tmp/orbit-redis-run.XXXXXX)
server=
end() {
    [ -z "$server" ] || kill "$server" 2>"$here/kill" || true
    [ -z "$server" ] || wait "$server" || true
    rm -rf "$here"
}
trap end EXIT
trap 'exit 130' INT TERM HUP PIPE
redis() { redis-cli -s "$here/s" "$@"; }
field() { redis ORBIT.INFO | sed -n "s/^$1:\([^\r]*\).*/\1/p"; }
slow() { redis DEBUG SLEEP 0.02 >"$here/said"; }

redis-server --port 0 --unixsocket "$here/s" --dir "$here" --save "" --enable-debug-command yes \
    --loadmodule "$target/release/liborbit_redis.so" threshold 10000 faults yes deadline-ms 1000 >"$here/log" 2>&1 &
server=$!
is_up() { kill -0 "$server" 2>"$here/said" || { echo "redis-server has ended:" >&2 && cat "$here/log" >&2 && exit 1; }; }
until redis PING >"$here/said" 2>&1; do is_up && sleep 0.1; done
echo "== $(redis-server --version | cut -d' ' -f1-3), pid $server; orbit $(field orbit_pid)"
for _ in 1 2 3; do slow; done
echo "== three slow commands: the orbit's log has $(redis ORBIT.SLOWLOG LEN), Redis' own $(redis SLOWLOG LEN)"
echo "== every fault of the task, while a client writes"
for fault in segv abort hang oom recursion kill; do
    echo "$fault: $(redis ORBIT.FAULT "$fault" | head -1 | cut -c1-100)"
    i=0
    while [ $i -lt 1000 ]; do i=$((i + 1)); echo "SET key:$i $fault"; done | redis >"$here/said"
    [ "$(grep -c '^OK' "$here/said")" = 1000 ] || echo "a write failed"
    slow
    echo "    1000 writes; the orbit's log has $(redis ORBIT.SLOWLOG LEN) again"
done
redis ORBIT.INFO | grep -E '^(orbit_crashes|entries_missed|entries_lost):'
echo "== Redis has pid $(redis INFO server | sed -n 's/^process_id:\([0-9]*\).*/\1/p')"
