#!/bin/sh
# Two builds of the command against each other: what OLD keeps, hosts, watches and holds is asked for and entered by NEW, then
# the other way round. Each meeting works, or is refused with a sentence; none hangs, dies of a signal, or ends a program that
# runs. The last line counts them.
#
#   scripts/upgrade.sh OLD [NEW]        two `orbit` commands; NEW: target/release/orbit
#
# For every release, with the one before. Ends only what it started.
set -eu
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
first=$1
second=${2:-target/release/orbit}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/orbit-upgrade.XXXXXX")
started=
end() {
    for pid in $started; do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap end EXIT
trap 'exit 130' INT TERM HUP
passed=0
failed=0

# $1 what meets what; the rest: a command that ends. It works, or says why not.
meets() {
    what=$1
    shift
    status=0
    timeout 30 "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    if [ $status = 0 ]; then
        said=works
    elif [ $status != 2 ] && { [ $status -lt 124 ] || [ $status = 125 ]; }; then
        said=$(tail -n 1 "$scratch/err")
        [ -n "$said" ] && said="refused: $said"
    else
        said=
    fi
    if [ -n "$said" ]; then
        passed=$((passed + 1))
        printf '  %-52s %s\n' "$what" "$said"
    else
        failed=$((failed + 1))
        printf '  %-52s FAILED with %s\n' "$what" "$status"
        cat "$scratch/err"
    fi
}

# $1 a sentence, $2 a process that has to live.
lives() {
    if kill -0 "$2" 2>/dev/null; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "  $1: FAILED, it has ended"
    fi
}

# Waits until the command succeeds.
until_it() {
    waited=0
    until "$@" >/dev/null 2>&1; do
        waited=$((waited + 1))
        [ $waited -lt 300 ] || { echo "not within 30 s: $*" >&2; exit 1; }
        sleep 0.1
    done
}

# $1 the build that runs, $2 the one that comes.
meet() {
    runs=$1
    comes=$2
    mkdir -p "$scratch/run" "$scratch/reports"
    printf '[[policy]]\nname = "none"\nmatch = { command = "no-such-program" }\nwatch = {}\n' >"$scratch/agent.toml"
    "$runs" keep --quiet --events "$scratch/kept" -- sleep 1000 &
    keeper=$!
    "$runs" service --socket "$scratch/host" run >/dev/null 2>&1 &
    host=$!
    "$runs" modules run ahd -- sleep 1001 >/dev/null 2>&1 &
    core=$!
    "$runs" agent --config "$scratch/agent.toml" --run-dir "$scratch/run" --reports-dir "$scratch/reports" >/dev/null 2>&1 &
    agent=$!
    "$runs" hijack -- sleep 1002 &
    guest=$!
    started="$started $keeper $host $core $agent $guest"
    until_it grep -q '"event":"kept"' "$scratch/kept"
    until_it test -S "$scratch/host"
    until_it test -S "$scratch/run/agent.sock"
    kept=$(sed -n 's/.*"pid":\([0-9]*\),"event":"kept".*/\1/p' "$scratch/kept" | head -n 1)
    started="$started $kept"
    until_it pgrep -P "$core" -f 'sleep 1001'
    until_it pgrep -f 'sleep 1002'
    started="$started $(pgrep -P "$core" -f 'sleep 1001')"
    meets "keep --status" "$comes" keep --status
    meets "keep --pid of a kept program" timeout -s INT 5 "$comes" keep --pid "$kept"
    lives "the kept program" "$kept"
    kill -9 $keeper
    wait $keeper 2>/dev/null || true
    meets "keep --pid, its keeper killed" timeout -s INT 5 "$comes" keep --pid "$kept"
    lives "the program that was kept" "$kept"
    meets "service ls" "$comes" service --socket "$scratch/host" ls
    meets "service log" "$comes" service --socket "$scratch/host" log
    meets "modules" "$comes" modules
    meets "modules load" "$comes" modules load tac
    meets "agent status" "$comes" agent status --socket "$scratch/run/agent.sock"
    meets "ps" "$comes" ps
    meets "top --once" "$comes" top --once
    meets "why, of the core's program" "$comes" why "$(pgrep -P "$core" -f 'sleep 1001')"
    meets "why, of the guest" "$comes" why "$guest"
    for part in "$host" "$core" "$agent" "$guest"; do
        lives "what ran before" "$part"
        kill "$part" 2>/dev/null || true
        wait "$part" 2>/dev/null || true
    done
    kill "$kept" 2>/dev/null || true
    rm -rf "$scratch/run" "$scratch/reports" "$scratch/kept" "$scratch/host"
}

echo "what $first runs, asked for by $second"
meet "$first" "$second"
echo "what $second runs, asked for by $first"
meet "$second" "$first"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
