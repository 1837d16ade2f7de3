#!/bin/sh
# nginx 1.22 of Debian with its PUT in an orbit: uploads while the task crashes in every way, and pages served while a large file
# is copied to another file system. Run by apps/run nginx.
set -eu
cd "$(dirname "$0")/../.."
scripts/packages.sh build ports
target=${CARGO_TARGET_DIR:-$PWD/target}
make -s -C apps/nginx/extension BUILD="$target/orbit-nginx" TARGET="$target"

here=$(mktemp -d /tmp/orbit-nginx-run.XXXXXX)
server=
end() {
    [ -z "$server" ] || kill -QUIT "$server" 2>"$here/kill" || true
    [ -z "$server" ] || wait "$server" || true
    rm -rf "$here" "/dev/shm/${here##*/}"
}
trap end EXIT
trap 'exit 130' INT TERM HUP PIPE
mkdir "$here/www" "/dev/shm/${here##*/}"
chmod 755 "$here"
chmod 777 "$here/www" "/dev/shm/${here##*/}"
user=
[ "$(id -u)" != 0 ] || user="user www-data;"
cat >"$here/nginx.conf" <<END
load_module $target/orbit-nginx/orbit_dav.so;
$user
worker_processes 1; pid $here/pid; error_log $here/log info;
events { worker_connections 512; }
http { access_log off; client_max_body_size 1g; client_body_temp_path /dev/shm/${here##*/};
    server { listen unix:$here/s; root $here/www; location / { orbit_dav_put on; orbit_dav_faults on; orbit_dav_deadline 2s; }
        location /large { orbit_dav_put on; } } }
END
nginx -c "$here/nginx.conf" -g "daemon off;" 2>"$here/stderr" &
server=$!
get() { curl -s -o "$here/got" -w '%{http_code}' --unix-socket "$here/s" -H Expect: "$@"; }
is_up() { kill -0 "$server" 2>"$here/kill" || { echo "nginx has ended:" >&2 && cat "$here/stderr" >&2 && exit 1; }; }
until [ "$(get http://n/)" = 403 ]; do is_up && sleep 0.1; done
echo "== $(nginx -v 2>&1), master $server, one worker:"
pgrep -a -P "$server"
pgrep -a -f "nginx: (orbit of PUT|template of orbits)"
echo hello >"$here/hello"
echo "== PUT: $(get -T "$here/hello" http://n/a), again $(get -T "$here/hello" http://n/a), GET: $(get http://n/a) $(cat "$here/got")"
echo "== the task crashes in every way; a good PUT after each"
for fault in segv hang memory recursion kill lie; do
    printf '%-10s %s, next PUT %s\n' "$fault" "$(get -T "$here/hello" -H "X-Orbit-Fault: $fault" http://n/f)" \
        "$(get -T "$here/hello" http://n/a)"
done
echo "== bug 238, a PUT without a body: $(get -X PUT -H "X-Orbit-Fault: no-body" http://n/f), next PUT $(get -T "$here/hello" http://n/a)"
grep -o 'orbit_dav: PUT failed: .*' "$here/log" | sed 's/, client: .*//'
echo "== pages while a file of 512 MiB is copied to another file system"
truncate -s 512M "$here/large"
get -T "$here/large" http://n/large >"$here/status" &
putting=$!
pages=0
slowest=0
while kill -0 $putting 2>"$here/kill"; do
    took=$(curl -s -o "$here/got" -w '%{time_total}' --unix-socket "$here/s" http://n/a)
    pages=$((pages + 1))
    slowest=$(printf '%s\n%s\n' "$slowest" "$took" | sort -g | tail -1)
done
wait $putting
echo "PUT $(cat "$here/status"); $pages pages meanwhile, the slowest took $slowest s"
echo "== workers that ended by a signal: $(grep -c 'exited on signal' "$here/log" || true)"
