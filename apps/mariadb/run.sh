#!/bin/sh
# MariaDB 10.11 of Debian with InnoDB's deadlock detector in an orbit: sessions that deadlock, while the detector is crashed in every
# way. Run by apps/run mariadb.
set -eu
cd "$(dirname "$0")/../.."
scripts/packages.sh build ports
target=${CARGO_TARGET_DIR:-$PWD/target}
make -s -C apps/mariadb/extension BUILD="$target/orbit-mariadb" TARGET="$target"

# MariaDB refuses to run as root.
here=$(mktemp -d /tmp/orbit-mariadb-run.XXXXXX)
server=
stop() { [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>"$here/stop" || true; }
trap 'stop; rm -rf "$here"' EXIT
trap 'exit 130' INT TERM HUP PIPE
mkdir "$here/plugins"
cp "$target/orbit-mariadb/orbit_deadlock.so" "$here/plugins/"
as=
if [ "$(id -u)" = 0 ]; then
    chown -R mysql "$here"
    as="setpriv --reuid=mysql --regid=mysql --clear-groups"
fi
$as mariadb-install-db --no-defaults --datadir="$here/data" --auth-root-authentication-method=normal --skip-test-db \
    --innodb-log-file-size=8M >"$here/install" 2>&1
$as mariadbd --no-defaults --datadir="$here/data" --socket="$here/s" --skip-networking --innodb-buffer-pool-size=32M \
    --innodb-log-file-size=8M --innodb-flush-log-at-trx-commit=0 --plugin-dir="$here/plugins" \
    --plugin-load-add=orbit_deadlock.so --orbit-deadlock-faults=ON --orbit-deadlock-deadline=500 >"$here/log" 2>&1 &
server=$!
sql() { mariadb --no-defaults -S "$here/s" -u root "$@"; }
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    if grep -q 'orbit_deadlock: ready' "$here/log"; then break; fi
    sleep 0.5
done
sql -e "CREATE DATABASE test; CREATE TABLE test.ring (id INT PRIMARY KEY, v INT NOT NULL) ENGINE=InnoDB;
    INSERT INTO test.ring SELECT seq, 0 FROM test.seq_0_to_9"
echo "== $(sql -N -e 'SELECT VERSION()'), innodb_deadlock_detect=$(sql -N -e 'SELECT @@innodb_deadlock_detect'), server $server"

# Two rows in opposite orders: these deadlock. Each session prints what became of its transactions.
session() {
    nth=0
    while [ $nth -lt 8 ]; do
        sql -f -e "BEGIN; UPDATE test.ring SET v = v + 1 WHERE id = $1; DO SLEEP(0.3); UPDATE test.ring SET v = v + 1 WHERE id = $2; COMMIT" 2>&1 |
            grep ERROR || echo committed
        nth=$((nth + 1))
    done
}
echo "== four sessions of 8 transactions in opposite orders; meanwhile the detector crashes in every way"
waiting=
for pair in "1 2" "2 1" "3 4" "4 3"; do
    # shellcheck disable=SC2086  # two words
    session $pair >"$here/session-${pair% *}" &
    waiting="$waiting $!"
done
for fault in assert segv hang memory recursion kill; do
    sleep 1
    sql -e "SET GLOBAL orbit_deadlock_fault = '$fault'"
done
# shellcheck disable=SC2086  # pids
wait $waiting
cat "$here"/session-* | sed 's/ at line [0-9]*//' | sort | uniq -c
echo "== the server"
kill -0 "$server" && echo "server is still $server, up for $(sql -N -e "SHOW STATUS LIKE 'Uptime'" | cut -f 2) s"
sql -N -e "SHOW GLOBAL STATUS LIKE 'orbit%'"
echo "== its log, first lines of each failed run"
grep 'a run of the detector failed' "$here/log" | grep -v ':    *[0-9]*: ' | cut -c1-150
grep -m 3 'is rolled back' "$here/log"
echo "== the plugin unloaded"
sql -e "UNINSTALL SONAME 'orbit_deadlock.so'"
echo "innodb_deadlock_detect=$(sql -N -e 'SELECT @@innodb_deadlock_detect')"
