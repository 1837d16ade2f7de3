#!/bin/sh
# Apache 2.4 of Debian with its load balancer and a lock watchdog in orbits: requests through a balancer while both are crashed in
# every way, then a lock that is held too long. Run by apps/run apache.
set -eu
cd "$(dirname "$0")/../.."
scripts/packages.sh build ports
target=${CARGO_TARGET_DIR:-$PWD/target}
make -s -C apps/apache/extension BUILD="$target/orbit-apache" TARGET="$target"

here=$(mktemp -d /tmp/orbit-apache-run.XXXXXX)
chmod 755 "$here"
server=
stop() { [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>"$here/stop" || true; }
trap 'stop; rm -rf "$here"' EXIT
trap 'exit 130' INT TERM HUP PIPE
cp "$target/orbit-apache/mod_orbit.so" "$target/orbit-apache/orbit_apr.so" "$here/"
mkdir "$here/htdocs"
echo page >"$here/htdocs/page"
free_port() {
    port=$1
    while ss -ltn | grep -q ":$port "; do port=$((port + 1)); done
    echo "$port"
}
port=$(free_port 18080)
one=$(free_port $((port + 1)))
two=$(free_port $((one + 1)))
modules=/usr/lib/apache2/modules
user=
[ "$(id -u)" != 0 ] || user="User www-data
Group www-data"
# The backends are virtual hosts of the same server.
cat >"$here/conf" <<END
ServerRoot $here
ServerName localhost
DefaultRuntimeDir $here
PidFile $here/pid
ErrorLog $here/log
Listen 127.0.0.1:$port
Listen 127.0.0.1:$one
Listen 127.0.0.1:$two
$user
LoadModule mpm_event_module $modules/mod_mpm_event.so
LoadModule authz_core_module $modules/mod_authz_core.so
LoadModule proxy_module $modules/mod_proxy.so
LoadModule proxy_http_module $modules/mod_proxy_http.so
LoadModule proxy_balancer_module $modules/mod_proxy_balancer.so
LoadModule lbmethod_byrequests_module $modules/mod_lbmethod_byrequests.so
LoadModule slotmem_shm_module $modules/mod_slotmem_shm.so
LoadModule orbit_module $here/mod_orbit.so
ServerLimit 1
StartServers 1
ThreadsPerChild 32
MaxRequestWorkers 32
DocumentRoot $here/htdocs
OrbitFaults On
OrbitDeadline 500
OrbitLockLimit 1000
<Location /orbit>
SetHandler orbit-status
</Location>
<VirtualHost 127.0.0.1:$port>
<Proxy balancer://app>
BalancerMember http://127.0.0.1:$one loadfactor=1
BalancerMember http://127.0.0.1:$two loadfactor=3
ProxySet lbmethod=orbit
</Proxy>
ProxyPass /app/ balancer://app/
</VirtualHost>
END
LD_PRELOAD=$here/orbit_apr.so setsid /usr/sbin/apache2 -DFOREGROUND -f "$here/conf" &
server=$!
page() { curl -sS "http://127.0.0.1:$port$1"; }
for _ in 1 2 3 4 5 6 7 8 9 10; do
    if page /page >"$here/out" 2>&1; then break; fi
    sleep 0.5
done
child() { page /orbit | sed -n 's/^child_pid://p'; }
was=$(child)
echo "== $(/usr/sbin/apache2 -v | head -1), child $was"
echo "== 8 clients for 10 s through the balancer; meanwhile its tasks crash in every way"
ab -q -k -t 10 -n 10000000 -c 8 "http://127.0.0.1:$port/app/page" >"$here/load" 2>&1 &
load=$!
for fault in segv hang memory recursion kill redirect; do
    for task in balancer watchdog; do
        page "/orbit?fault=$task:$fault" >"$here/out"
    done
    sleep 1
done
wait $load
grep -E 'Complete requests|Failed requests|Non-2xx|Requests per second' "$here/load"
[ "$(child)" = "$was" ] && echo "the child is still $was"
page /orbit
echo "== the error log, first lines of each event"
grep -E 'orbit:error' "$here/log" | grep -v ':    *[0-9]*: ' | sed 's/^\[[^]]*\] //' | cut -c1-150 | uniq
echo "== a lock held for 3 s, the limit being 1 s"
page '/orbit?hold=3000' >"$here/out" &
held=$!
sleep 1
page '/orbit?hold=1' >"$here/out2"
wait $held
grep 'orbit-watchdog: thread' "$here/log" | sed 's/^\[[^]]*\] //'
