#!/bin/sh
# A tour: each act runs a real program into a real failure and prints PASS or FAIL. Under two minutes after the build on an
# idle machine. The exit status is 1 if an act failed.
#
#   scripts/demo.sh [ACT...]        acts: crash deadlock keep
#
# Each act is a script of its own below scripts/demo.
set -eu
cd "$(dirname "$0")/.."
. scripts/demo/say.sh

scripts/packages.sh build demo
say "building"
build
[ $# -gt 0 ] || set -- crash deadlock keep
failed=
for act in "$@"; do
    case $act in
    crash) say "
Act one: the auxiliary task of a Redis crashes a hundred times; the server does not notice" ;;
    deadlock) say "
Act two: a program deadlocks; the watcher says which threads, where and why" ;;
    keep) say "
Act three: requests kill a Redis; it is put back in place, and other clients see no error" ;;
    *)
        echo "demo.sh: no act $act: crash deadlock keep" >&2
        exit 2
        ;;
    esac
    "scripts/demo/$act.sh" || failed="$failed $act"
done
[ -z "$failed" ] || { printf '\n%sfailed:%s%s\n' "$red" "$failed" "$plain"; exit 1; }
