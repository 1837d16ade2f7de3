#!/bin/sh
# Act one: Debian's own redis-server with our module, driven by redis-benchmark while its auxiliary task is crashed a hundred
# times. Ends with PASS or FAIL and a matching exit status.
#
#   scripts/demo/crash.sh
#
# Uses unix sockets in a directory of its own, and ends only what it started.
set -eu
cd "$(dirname "$0")/../.."
. scripts/demo/say.sh

crashes_wanted=100
build
module=$release/liborbit_redis.so
scratch=$(mktemp -d "${TMPDIR:-/tmp}/orbit-demo.XXXXXX")
pids=
end() {
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap end EXIT
trap 'exit 130' INT TERM HUP

# $1 name, then the module's arguments.
serve() {
    name=$1
    shift
    (
        cd "$scratch"
        exec redis-server --port 0 --unixsocket "$name" --save "" --appendonly no --enable-debug-command yes --slowlog-log-slower-than -1 \
            --loadmodule "$module" "$@" >"$name.log" 2>&1
    ) &
    pids="$pids $!"
    echo $! >"$scratch/$name.pid"
    waited=0
    until [ "$(redis-cli -s "$scratch/$name" ping 2>/dev/null)" = PONG ]; do
        waited=$((waited + 1))
        [ $waited -lt 200 ] || { cat "$scratch/$name.log"; echo FAIL; exit 1; }
        sleep 0.1
    done
}
ask() { redis-cli -s "$scratch/orbit" "$@"; }
# $1 section or orbit.info, $2 field
field() {
    # shellcheck disable=SC2086  # a command in words
    ask $1 | tr -d '\r' | sed -n "s/^$2://p"
}
# Requests a second of half SET, half GET.
drive() {
    redis-benchmark -s "$scratch/$1" -t set,get -n "$2" -c 50 -P 16 -r 100000 -d 64 --csv 2>/dev/null | tr -d '"' |
        awk -F, -v n="$2" '$1 == "SET" || $1 == "GET" {s += n / $2; k++} END {if (k != 2) exit 1; printf "%.0f\n", 2 * n / s}'
}

serve off mode off
rate=$(drive off 50000)
# About a second for each measurement, however fast the machine.
requests=$((rate / 2))
every=$((rate / 1000 + 1))
serve inside mode inside every $every
serve orbit mode orbit every $every faults yes deadline-ms 200 memory-mb 16
server=$(cat "$scratch/orbit.pid")
say "$(redis-server --version | cut -d' ' -f1-3), unmodified; the module notes each ${every}th command, about 1000 a second"

say "a crash: ORBIT.FAULT segv"
# Frames of the standard library are left out.
ask orbit.fault segv | grep -v -F /rustc/ | sed -n 's/^/    /; 1,3p'

say "throughput, 5 interleaved rounds of $((2 * requests)) requests, median"
: >"$scratch/all"
for round in 1 2 3 4 5; do
    for name in off inside orbit; do echo "$round $name $(drive $name $requests)" >>"$scratch/all"; done
done
median() { sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
for name in off inside orbit; do
    case $name in off) what="no task" ;; inside) what="task inside Redis" ;; orbit) what="task in an orbit" ;; esac
    printf '    %-20s %9s requests/s\n' "$what" "$(awk -v a=$name '$2 == a {print $3}' "$scratch/all" | median)"
done
ratio=$(awk '$2 == "orbit" {o[$1] = $3} $2 == "inside" {i[$1] = $3} END {for (r in o) printf "%.3f\n", o[r] / i[r]}' \
    "$scratch/all" | median)
printf '    orbit / inside, median of the rounds: %s (scripts/redis-bench.sh measures it with care)\n' "$ratio"

say "crashing the task $crashes_wanted times under load: segv, abort, out of memory, hang, in turn"
crashes_before=$(field orbit.info orbit_crashes)
served_before=$(field "info stats" total_commands_processed)
errors_before=$(field "info stats" total_error_replies)
touch "$scratch/go"
(
    while [ -e "$scratch/go" ]; do
        redis-benchmark -s "$scratch/orbit" -t set,get -n $requests -c 50 -P 16 -r 100000 -d 64 -q >"$scratch/bench" 2>&1 ||
            echo "redis-benchmark ended with $?" >>"$scratch/errors"
        grep -i -E 'error|refused|reset' "$scratch/bench" >>"$scratch/errors" || true
    done
) &
load=$!
n=0
while [ $n -lt $crashes_wanted ]; do
    case $((n % 4)) in 0) fault=segv ;; 1) fault=abort ;; 2) fault=oom ;; 3) fault=hang ;; esac
    ask orbit.fault $fault | head -n 1 >>"$scratch/outcomes"
    [ $n != 50 ] || ask bgsave >/dev/null
    n=$((n + 1))
done
crashes_of_faults=$(field orbit.info orbit_crashes)
ask orbit.fault leak | sed -n 's/^/    /; 1p'
waited=0
while [ "$(field orbit.info orbit_crashes)" = "$crashes_of_faults" ] && [ $waited -lt 300 ]; do
    waited=$((waited + 1))
    sleep 0.1
done
leak_end=$(field orbit.info orbit_last_failure)
rm "$scratch/go"
wait $load
# The orbit may still be on its way up: a query waits for it.
len=$(ask orbit.slowlog len)
waited=0
until [ "$(field "info persistence" rdb_bgsave_in_progress)" = 0 ] || [ $waited -gt 200 ]; do
    waited=$((waited + 1))
    sleep 0.1
done

crashes=$(($(field orbit.info orbit_crashes) - crashes_before))
restarts=$(field orbit.info orbit_restarts)
served=$(($(field "info stats" total_commands_processed) - served_before))
error_replies=$(($(field "info stats" total_error_replies) - errors_before))
client_errors=$(cat "$scratch/errors" 2>/dev/null | wc -l)
sort "$scratch/outcomes" | uniq -c | sed 's/^/    /'
printf '    %7d %s\n' 1 "$leak_end (the leak)"
say "result"
printf '    %-44s %s\n' "requests served meanwhile" "$served"
printf '    %-44s %s\n' "errors seen by clients" "$((client_errors + error_replies))"
printf '    %-44s %s\n' "crashes of the task contained" "$crashes"
printf '    %-44s %s\n' "restarts of the task, the first included" "$restarts"
printf '    %-44s %s\n' "entries of the slow log seen" "$(field orbit.info entries_seen)"
printf '    %-44s %s\n' "of these lost with a crash, as counted" "$(field orbit.info entries_lost)"
printf '    %-44s %s\n' "entries the slow log holds now" "$len"
printf '    %-44s %s\n' "longest hand-over in Redis, us, CPUs busy" "$(field orbit.info handover_usec_max)"
printf '    %-44s %s\n' "background save meanwhile" "$(field "info persistence" rdb_last_bgsave_status)"

bad=
wrong() {
    bad="$bad
    $1"
}
[ $((client_errors + error_replies)) = 0 ] || wrong "a client saw an error"
[ "$crashes" -gt $crashes_wanted ] || wrong "fewer crashes than $crashes_wanted and the leak's"
for cause in SIGSEGV SIGABRT "out of memory" deadline; do
    [ "$(grep -c "$cause" "$scratch/outcomes")" = $((crashes_wanted / 4)) ] || wrong "not every fourth fault ended by its cause, $cause"
done
[ "$leak_end" = "out of memory" ] || wrong "the leak did not end as out of memory"
[ "$restarts" = $((crashes + crashes_before)) ] || wrong "not every crash was followed by a restart"
[ "$len" -gt 0 ] || wrong "the slow log does not answer"
[ "$(field "info server" process_id)" = "$server" ] || wrong "the server is not the one that was started"
[ "$(field "info persistence" rdb_last_bgsave_status)" = ok ] || wrong "the background save failed"
ask shutdown nosave >/dev/null 2>&1 || true
verdict "$bad" \
    "Debian's Redis served $served requests while its auxiliary task died $crashes times: $crashes_wanted faults and a leak" \
    "clients saw $((client_errors + error_replies)) errors; the server is the process that was started" \
    "each death was reported by its cause: SIGSEGV, SIGABRT, out of memory, deadline"
