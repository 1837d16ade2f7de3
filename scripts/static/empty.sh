#!/bin/sh
# A trial of scripts/static.sh: the command in a root with two static programs and /proc, and nothing else.
. scripts/static/try.sh
echo "in an empty root:"
try "orbit --version" 0 '^orbit [0-9]' /orbit --version
try "orbit doctor" 0 'Orbits work here' /orbit doctor
try "orbit watch finds a deadlock, with the lines of the source" 137 'hangs\.c:' /orbit watch --on-hang kill -- /hangs ring2
try "orbit hijack: a rule acts in a static program" 2 'acted 1 times' \
    /orbit hijack --inject 'write(fd=2) -> ENOSPC' -- /hangs none
try "orbit keep puts a static program back" 7 'put back to the newest checkpoint' \
    /orbit keep --state best-effort --allow-repeats --every 50ms -- /faults plain
try "orbit agent --check" 1 'No such file' /orbit agent --check /none.toml
env -i "$chroot" "$root" /hangs ring2 >/dev/null 2>&1 &
hung=$!
waited=0
until [ "$(cat /proc/$hung/task/*/stat 2>/dev/null | grep -c '(hangs) S ')" = 3 ] || [ $waited -gt 300 ]; do
    waited=$((waited + 1))
    sleep 0.1
done
try "orbit why names the ring" 0 '^deadlock: .*(certain)' /orbit why $hung
kill $hung
wait $hung 2>/dev/null
exit $wrong
