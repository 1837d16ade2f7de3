#!/bin/sh
# Act two: a program that was not changed for it deadlocks; the watcher reports which threads, where and why, and kills it.
# Ends with PASS or FAIL and a matching exit status.
#
#   scripts/demo/deadlock.sh
set -eu
cd "$(dirname "$0")/../.."
. scripts/demo/say.sh

build
orbit=$release/orbit
scratch=$(mktemp -d "${TMPDIR:-/tmp}/orbit-demo.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
cp examples/c/transfer.c "$scratch"
(cd "$scratch" && "${CC:-cc}" -O1 -g transfer.c -o transfer -lpthread)
# The source marks the line where both threads stop: reformatting it changes nothing here.
line=$(sed -n '/the bug:/=' "$scratch/transfer.c")

say "examples/c/transfer.c takes two locks in opposite order; orbit watch --on-hang kill -- ./transfer"
status=0
(cd "$scratch" && timeout 60 "$orbit" watch --on-hang kill --events events -- ./transfer 2>report) || status=$?
sed 's/^/    /' "$scratch/report"

bad=
[ "$status" = 137 ] || bad="$bad
    the program ended with $status: 137 was expected, SIGKILL"
for text in alice_pays bob_pays "transfer.c:$line" "only these could wake each other"; do
    grep -q -F "$text" "$scratch/report" || bad="$bad
    the report does not name $text"
done
grep -q '"event":"hang"' "$scratch/events" || bad="$bad
    the events hold no hang"
verdict "$bad" \
    "the program deadlocked by itself and was not changed or compiled for the watcher" \
    "$(wc -l <"$scratch/report") lines of report name both threads, both locks and transfer.c:$line" \
    "it was reported as a hang that cannot resolve itself, then killed as asked (status $status)"
