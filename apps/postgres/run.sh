#!/bin/sh
# PostgreSQL 15 of Debian with its deadlock detector in an orbit: sessions that deadlock under load, while the detector is
# crashed in every way. Then the same crash without an orbit. Run by apps/run postgres.
set -eu
cd "$(dirname "$0")/../.."
scripts/packages.sh build ports
bin=/usr/lib/postgresql/15/bin
target=${CARGO_TARGET_DIR:-$PWD/target}
make -s -C apps/postgres/extension BUILD="$target/orbit-postgres" TARGET="$target"

# PostgreSQL refuses to run as root.
here=$(mktemp -d /tmp/orbit-pg-run.XXXXXX)
as=
if [ "$(id -u)" = 0 ]; then
    chown postgres "$here"
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
fi
stop() { [ ! -f "$here/data/postmaster.pid" ] || $as "$bin/pg_ctl" -D "$here/data" -m immediate -w stop >"$here/stop" 2>&1 || true; }
trap 'stop; rm -rf "$here"' EXIT
trap 'exit 130' INT TERM HUP PIPE
cp "$target/orbit-postgres/orbit_deadlock.so" "$here/"
sed "s#MODULE_PATHNAME#$here/orbit_deadlock.so#" apps/postgres/extension/orbit_deadlock--1.0.sql >"$here/declare.sql"
cd "$here"
chmod 644 declare.sql
sql() { $as "$bin/psql" -X -q -h "$here" -U postgres "$@"; }

start() {
    stop
    rm -rf data log
    $as "$bin/initdb" -D data -A trust -U postgres --no-sync --locale=C >initdb.log
    $as "$bin/pg_ctl" -D data -l "$here/log" -w start -o "-c listen_addresses= -c unix_socket_directories=$here -c fsync=off \
-c shared_preload_libraries=$here/orbit_deadlock.so -c orbit_deadlock.run_in=$1 -c orbit_deadlock.deadline=500ms" >start.log
    sql -f declare.sql
    sql -c "CREATE TABLE ring (id int PRIMARY KEY, v int NOT NULL)" -c "INSERT INTO ring SELECT g, 0 FROM generate_series(0, 9) g"
}
# Two rows in any order: some of these deadlock. They are retried, as applications do.
cat >deadlock.sql <<'END'
\set a random(0, 9)
\set b random(0, 9)
BEGIN;
UPDATE ring SET v = v + 1 WHERE id = :a;
UPDATE ring SET v = v + 1 WHERE id = :b;
COMMIT;
END
load() { $as "$bin/pgbench" -h "$here" -U postgres -n -c 8 -T "$1" --max-tries=100 -f deadlock.sql postgres; }

touch log initdb.log start.log
[ -z "$as" ] || chown postgres log initdb.log start.log
chown_log() { [ -z "$as" ] || chown postgres "$here"/*.log; }
chown_log
start orbit
postmaster=$(head -1 data/postmaster.pid)
echo "== PostgreSQL $(sql -At -c 'SHOW server_version'), postmaster $postmaster, its own detector after $(sql -At -c 'SHOW deadlock_timeout') without an answer of the worker"
echo "== 8 clients for 10 s; meanwhile the detector crashes in every way"
load 10 >load.out 2>&1 &
loading=$!
for fault in segv hang memory recursion kill segv; do
    sleep 1
    printf '%-10s ' "$fault"
    sql -At -c "SET orbit_deadlock.faults = on" -c "SELECT orbit_deadlock_fault('$fault')"
done
wait $loading
grep -E 'transactions actually|failed|retried|tps' load.out
echo "== the server"
[ "$(head -1 data/postmaster.pid)" = "$postmaster" ] && kill -0 "$postmaster" 2>kill.log && echo "postmaster is still $postmaster"
echo "sessions ended by the server: $(grep -c 'terminating connection' log || true)"
sql -x -c "SELECT calls, failed_calls, crashes, deadlocks_broken, cycles_refuted, last_event FROM orbit_deadlock"
echo "== its log of one crash"
grep -A 3 'crashed: SIGSEGV at 0x0' log | head -4
echo
echo "== the same crash without an orbit (orbit_deadlock.run_in = worker): 8 clients"
start worker
load 5 >load.out 2>&1 &
loading=$!
sleep 2
sql -At -c "SET orbit_deadlock.faults = on" -c "SELECT orbit_deadlock_fault('segv')" >fault.out 2>&1 || true
wait $loading || true
echo "clients that lost their connection: $(grep -c 'client [0-9]* aborted' load.out || true) of 8"
grep -E 'terminated by signal|terminating any other|reinitializing' log || true
