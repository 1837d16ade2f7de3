#!/bin/sh
# Varnish 7.1 of Debian with its pool herder in an orbit: threads made and ended under load, every fault of the herder. Run by
# apps/run varnish.
set -eu
cd "$(dirname "$0")/../.."
scripts/packages.sh build ports
target=${CARGO_TARGET_DIR:-$PWD/target}
make -s -C apps/varnish/extension BUILD="$target/orbit-varnish" TARGET="$target"

here=$(mktemp -d /tmp/orbit-varnish-run.XXXXXX)
server=
end() {
    [ -z "$server" ] || kill "$server" 2>"$here/kill" || true
    [ -z "$server" ] || wait "$server" || true
    rm -rf "$here"
}
trap end EXIT
trap 'exit 130' INT TERM HUP PIPE
chmod 755 "$here"
touch "$here/faults"
chmod 666 "$here/faults"
cat >"$here/test.vcl" <<'END'
vcl 4.1;
import vtc;
backend default none;
sub vcl_recv { if (req.url == "/slow") { vtc.sleep(1s); } return (synth(200)); }
END
ORBIT_HERDER_FAULTS="$here/faults" LD_PRELOAD="$target/orbit-varnish/orbit_herder.so" varnishd -n "$here/work" -a "$here/s" -f "$here/test.vcl" \
    -F -p thread_pools=1 -p thread_pool_min=10 -p thread_pool_max=40 -p thread_pool_timeout=10 -p thread_pool_destroy_delay=0.1 >"$here/said" 2>&1 &
server=$!
get() { curl -s -o "$here/got" -w '%{http_code}' --unix-socket "$here/s" "$@"; }
count() { varnishstat -n "$here/work" -1 -f "MAIN.$1" | awk '{print $2}'; }
is_up() { kill -0 "$server" 2>"$here/kill" || { echo "varnishd has ended:" >&2 && cat "$here/said" >&2 && exit 1; }; }
until [ "$(get http://v/)" = 200 ] && [ "$(count threads)" = 10 ]; do is_up && sleep 0.1; done
burst() {
    pids=
    for _ in $(seq 35); do
        curl -s -o "$here/got" --unix-socket "$here/s" http://v/slow &
        pids="$pids $!"
    done
    for pid in $pids; do wait "$pid" || echo "a request failed"; done
}
worker=$(pgrep -P "$server" | head -1)
echo "== $(varnishd -V 2>&1 | head -1), worker process $worker; threads: $(count threads)"
burst
echo "== after 35 slow requests at once: $(count threads), made $(count threads_created); queued $(count sess_queued)"
echo "== every fault; before each, idle threads end, which takes a quarter of a minute"
for fault in segv hang memory recursion kill lie; do
    until [ "$(count threads)" -le 12 ]; do is_up && sleep 0.5; done
    echo "$fault 1" >"$here/faults"
    burst
    echo "$fault: threads after 35 slow requests: $(count threads)"
done
varnishlog -n "$here/work" -d -g raw -i Error | sed -n 's/.*\(orbit_herder: a run.*\)/\1/p' | cut -c1-240
echo "== threads made: $(count threads_created), ended: $(count threads_destroyed); worker process $(pgrep -P "$server" | head -1)"
