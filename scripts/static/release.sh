#!/bin/sh
# A trial of scripts/static.sh in a minimal root of the release $1: programs that are linked dynamically, with that release's libraries.
. scripts/static/try.sh
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
cp "$orbit" "$root/run/orbit"
echo "in a root of $1 ($(cat "$root/etc/debian_version")):"
try "orbit hijack: a rule acts in a dynamic program" 1 'acted 1 times' \
    /run/orbit hijack --inject 'openat(path="/etc/hostname") -> EACCES' -- cat /etc/hostname

# It crashes once, after its first checkpoints.
# shellcheck disable=SC2016  # perl's variables
crashes='select undef, undef, undef, 1; unless (-e "/run/crashed") { open F, ">", "/run/crashed"; kill SEGV => $$ } exit 7'
wanted=7 has='put back to the newest checkpoint'
what="orbit keep puts a dynamic program back"
status=0
in_root /run/orbit keep --state best-effort --allow-repeats --every 50ms -- perl -e "$crashes" >"$scratch/said" 2>&1 </dev/null || status=$?
if grep -q 'version .GLIBC_.* not found' "$scratch/said"; then
    wanted=1 has='before the library of its side came up'
    what="orbit keep says that this glibc does not take the library of its side"
fi
result "$what"

in_root redis-server --port 0 --unixsocket /run/redis.sock --save '' >/dev/null 2>&1 &
timed=$!
waited=0
until [ "$(in_root redis-cli -s /run/redis.sock ping 2>&1)" = PONG ] || [ $waited -gt 200 ]; do
    waited=$((waited + 1))
    sleep 0.1
done
number=$(in_root redis-cli -s /run/redis.sock info server | tr -d '\r' | sed -n 's/^process_id://p')
try "orbit why of a server" 0 'redis-server) waits for epoll' /run/orbit why "${number:-0}"
try "orbit watch ends with the program it watches" 7 '' /run/orbit watch -- perl -e 'exit 7'
in_root redis-cli -s /run/redis.sock shutdown nosave >/dev/null
wait "$timed" 2>/dev/null
exit $wrong
