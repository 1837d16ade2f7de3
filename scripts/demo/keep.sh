#!/bin/sh
# Act three of scripts/demo.sh: Debian's redis-server, unmodified, gets requests that kill it; orbit keep puts it back in place, and another client
# sees no error.
#
# A unix socket in a directory of its own. Terminates only what it started.
set -eu
cd "$(dirname "$0")/../.."
. scripts/demo/say.sh

crashes_wanted=5
build
orbit=$release/orbit
scratch=$(mktemp -d "${TMPDIR:-/tmp}/orbit-demo.XXXXXX")
keeper=
end() {
    if [ -n "$keeper" ]; then
        kill -TERM "$keeper" 2>/dev/null || true
        wait "$keeper" 2>/dev/null || true
    fi
    rm -rf "$scratch"
}
trap end EXIT
trap 'exit 130' INT TERM HUP

"$orbit" keep --log --events "$scratch/events" -- redis-server --port 0 --unixsocket "$scratch/socket" --save "" --appendonly no \
    --enable-debug-command yes --crash-memcheck-enabled no --logfile "$scratch/redis.log" 2>"$scratch/keep.log" &
keeper=$!
ask() { redis-cli -s "$scratch/socket" "$@"; }
waited=0
until [ "$(ask ping 2>/dev/null)" = PONG ] && grep -q '"event":"kept"' "$scratch/events"; do
    waited=$((waited + 1))
    [ $waited -lt 600 ] || { cat "$scratch/keep.log"; echo FAIL; exit 1; }
    sleep 0.1
done
server=$(ask info server | tr -d '\r' | sed -n 's/^process_id://p')

# One connection that increments for as long as the pipe is open; each answer must be one more than the last.
(while [ -e "$scratch/socket" ] && [ ! -e "$scratch/stop" ]; do echo "INCR demo"; sleep 0.01; done) |
    redis-cli -s "$scratch/socket" >"$scratch/answers" 2>&1 &
client=$!
crash=0
while [ $crash -lt $crashes_wanted ]; do
    sleep 0.5
    crash=$((crash + 1))
    ask debug segfault >/dev/null 2>&1 || true
    waited=0
    until [ "$(grep -c '"event":"recovered","rung":"drop"' "$scratch/events")" -ge $crash ] || [ $waited -gt 600 ]; do
        waited=$((waited + 1))
        sleep 0.1
    done
done
sleep 0.5
touch "$scratch/stop"
wait $client || true
sed -n 's/^/    /; 1,3p' "$scratch/keep.log"

answers=$(wc -l <"$scratch/answers")
wrong=$(awk '$1 != NR' "$scratch/answers" | wc -l)
held=$(ask get demo)
printf '    %-44s %s\n' "crashes of the server" "$(grep -c '"event":"crash"' "$scratch/events")"
printf '    %-44s %s\n' "answers to the other client" "$answers"
printf '    %-44s %s\n' "errors, lost or doubled among them" "$wrong"
bad=
wrong() {
    bad="$bad
    $1"
}
[ "$wrong" = 0 ] || wrong "the other client saw an error"
[ "$answers" -gt 20 ] || wrong "the other client got few answers"
[ "$held" = "$answers" ] || wrong "an INCR was lost or doubled"
[ "$(ask info server | tr -d '\r' | sed -n 's/^process_id://p')" = "$server" ] || wrong "the server is not the one that was started"
[ "$(grep -c '"event":"recovered","rung":"drop"' "$scratch/events")" -ge $crashes_wanted ] || wrong "not every deadly request was dropped"
verdict "$bad" \
    "Debian's Redis crashed $(grep -c '"event":"crash"' "$scratch/events") times and is still process $server" \
    "the other client got $answers answers, each one more than the last: $wrong wrong" \
    "INCR was neither lost nor doubled: the key holds $held"
