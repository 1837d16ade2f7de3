#!/bin/sh
# What the slow log's task costs Redis: without it (off), inside Redis' own thread, and in an orbit, at about 100 and about
# 1000 orbit calls a second. Run nothing else meanwhile.
#
#   scripts/redis-bench.sh [--rounds N] [--requests N] [--json FILE]
#
# Five servers stand side by side; each round drives each of them in turn, beginning with another one each time, with half
# SET and half GET, 50 clients, 16 requests in flight each. Redis is kept to CPU 0, the clients to the last CPU, the orbit
# goes where the kernel puts it. Compared is what came together: ratios within a round, then their median, quartiles
# and number. Throughput is what clients saw; CPU is the time of all of the server's threads for a request, which other
# load on the machine disturbs less. 1.00 is as fast as inside; above is faster.
set -eu
cd "$(dirname "$0")/.."

rounds=10 requests='' json=''
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --requests) requests=$2 ;;
    --json) json=$2 ;;
    *)
        echo "usage: scripts/redis-bench.sh [--rounds N] [--requests N] [--json FILE]" >&2
        exit 2
        ;;
    esac
    shift 2
done
scripts/packages.sh build demo
cargo build --quiet --release -p orbit-redis
module=$(cd "${CARGO_TARGET_DIR:-target}/release" && pwd)/liborbit_redis.so
scratch=$(mktemp -d "${TMPDIR:-/tmp}/orbit-redis-bench.XXXXXX")
pids=
end() {
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap end EXIT
trap 'exit 130' INT TERM HUP
last_cpu=$(($(nproc) - 1))
pin=
[ "$last_cpu" = 0 ] || pin="taskset -c $last_cpu"

# $1 name, then the module's arguments.
serve() {
    name=$1
    shift
    (
        cd "$scratch"
        exec redis-server --port 0 --unixsocket "$name" --save "" --appendonly no --server_cpulist 0 \
            --slowlog-log-slower-than -1 --loadmodule "$module" "$@" >"$name.log" 2>&1
    ) &
    pids="$pids $!"
    echo $! >"$scratch/$name.pid"
    waited=0
    until [ "$(redis-cli -s "$scratch/$name" ping 2>/dev/null)" = PONG ]; do
        waited=$((waited + 1))
        [ $waited -lt 200 ] || { cat "$scratch/$name.log" >&2; exit 1; }
        sleep 0.1
    done
}

# Time on a CPU of all threads of a server, nanoseconds.
cpu() { cat /proc/"$(cat "$scratch/$1.pid")"/task/*/schedstat | awk '{n += $1} END {printf "%.0f\n", n}'; }
calls() { redis-cli -s "$scratch/$1" orbit.info | tr -d '\r' | sed -n 's/^handovers://p'; }

# Drives a server; prints requests a second, nanoseconds of CPU a request, hand-overs a second.
drive() {
    name=$1 n=$2
    before=$(cpu "$name") calls_before=$(calls "$name")
    $pin redis-benchmark -s "$scratch/$name" -t set,get -n "$n" -c 50 -P 16 -r 100000 -d 64 --csv 2>/dev/null |
        tr -d '"' >"$scratch/out.csv"
    after=$(cpu "$name") calls_after=$(calls "$name")
    awk -F, -v n="$n" -v cpu=$((after - before)) -v calls=$((${calls_after:-0} - ${calls_before:-0})) '
        $1 == "SET" || $1 == "GET" { s += n / $2; k++ }
        END { if (k != 2) exit 1; printf "%.0f %.1f %.0f\n", 2 * n / s, cpu / (2 * n), calls / s }' "$scratch/out.csv"
}

steal() { awk '/^cpu / {print $9}' /proc/stat; }

serve off mode off
rate=$(drive off 200000 | cut -d' ' -f1)
# About two seconds for each measurement unless set otherwise.
requests=${requests:-$rate}
every100=$((rate / 100)) every1000=$((rate / 1000))
serve inside100 mode inside every "$every100"
serve orbit100 mode orbit every "$every100"
serve inside1000 mode inside every "$every1000"
serve orbit1000 mode orbit every "$every1000"
for name in off inside100 orbit100 inside1000 orbit1000; do drive "$name" "$requests" >/dev/null; done
echo "off: $rate requests/s; noted is each ${every100}th or ${every1000}th; $rounds rounds of $((2 * requests)) requests each"

order="off inside100 orbit100 inside1000 orbit1000"
steal_before=$(steal)
round=0
while [ $round -lt "$rounds" ]; do
    for name in $order; do
        echo "$round $name $(drive "$name" "$requests")" >>"$scratch/all"
    done
    order="${order#* } ${order%% *}"
    round=$((round + 1))
done
stolen=$(($(steal) - steal_before))

# quartiles COLUMN OVER UNDER: of the ratio of two variants, round by round.
quartiles() {
    awk -v c="$1" -v a="$2" -v b="$3" '$2 == a {x[$1] = $c} $2 == b {y[$1] = $c} END {for (r in x) print x[r] / y[r]}' \
        "$scratch/all" | sort -n | awk '{v[NR] = $1} END {
            printf "%.4f %.4f %.4f %d\n", at(0.5), at(0.25), at(0.75), NR
        }
        function at(q,   p, l) { p = 1 + q * (NR - 1); l = int(p); return v[l] + (p - l) * (l < NR ? v[l + 1] - v[l] : 0) }'
}
median() {
    awk -v c="$1" -v a="$2" '$2 == a {print $c}' "$scratch/all" | sort -n |
        awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'
}

printf '%-11s %12s %14s %8s\n' variant requests/s 'CPU ns/request' calls/s
for name in off inside100 orbit100 inside1000 orbit1000; do
    printf '%-11s %12s %14s %8s\n' "$name" "$(median 3 $name)" "$(median 4 $name)" "$(median 5 $name)"
done
printf '\n%-36s %8s %17s %4s %8s\n' ratio median quartiles n promised
list=
row() {
    # shellcheck disable=SC2086  # four numbers
    set -- "$1" "$2" $3
    printf '%-36s %8s %8s %8s %4s %8s\n' "$1" "$3" "$4" "$5" "$6" "$2"
    list="$list${list:+,}
  {\"ratio\": \"$1\", \"median\": $3, \"quartile1\": $4, \"quartile3\": $5, \"n\": $6}"
}
row "throughput, orbit/inside, 100/s" 0.99 "$(quartiles 3 orbit100 inside100)"
row "throughput, orbit/inside, 1000/s" 0.967 "$(quartiles 3 orbit1000 inside1000)"
row "CPU a request, inside/orbit, 100/s" - "$(quartiles 4 inside100 orbit100)"
row "CPU a request, inside/orbit, 1000/s" - "$(quartiles 4 inside1000 orbit1000)"
row "throughput, orbit/off, 100/s" - "$(quartiles 3 orbit100 off)"
row "throughput, orbit/off, 1000/s" - "$(quartiles 3 orbit1000 off)"
row "throughput, inside/off, 1000/s" - "$(quartiles 3 inside1000 off)"
echo "stolen by the host meanwhile: $stolen ticks of 10 ms"
if [ -n "$json" ]; then
    printf '{"rounds": %s, "requests": %s, "steal_ticks": %s, "ratios": [%s\n]}\n' \
        "$rounds" "$((2 * requests))" "$stolen" "$list" >"$json"
fi
