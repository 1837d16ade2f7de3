#!/bin/sh
# Servers under `orbit keep --log` in units with filters of system calls, crashed by a request: put back, with what they had.
#
#   keep.sh ROOT ORBIT
set -eu
root=$1
install -m 755 "$2" "$root/usr/bin/orbit"
for kind in plain filtered; do
    filter=''
    [ $kind = plain ] || filter='SystemCallFilter=@system-service @debug
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
RestrictRealtime=yes'
    cat >"$root/etc/systemd/system/redis-$kind.service" <<END
[Service]
Type=exec
ExecStart=/usr/bin/orbit keep --log -- /usr/bin/redis-server --port 6399 --save "" --enable-debug-command yes
$filter
END
done
cat >"$root/trial" <<'END'
#!/bin/sh
ask() { redis-cli -p 6399 "$@" 2>&1; }
for kind in plain filtered; do
    systemctl start redis-$kind
    n=0
    until journalctl -q -u redis-$kind -o cat | grep -q 'kept' || [ $n -gt 60 ]; do
        ask ping >/dev/null
        n=$((n + 1))
        sleep 0.5
    done
    ask set before 17
    ask incr before
    ask debug segfault
    echo "$kind after: $(ask get before) $(systemctl is-active redis-$kind) restarts $(systemctl show redis-$kind -p NRestarts --value)"
    journalctl -q -u redis-$kind -o cat | sed "s/^/$kind log: /"
    systemctl stop redis-$kind
done
echo whole
END
