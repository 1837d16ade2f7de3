#!/bin/sh
# Boots systemd in a container (systemd-nspawn) on an overlay of this machine's own root, with the agent's shipped unit beside a service
# that hangs and a healthy one; writes what came of it to FOLDER/result.
#
#   machine.sh FOLDER ORBIT HANGS PACKAGING
#
# FOLDER is an empty directory. The overlay is in memory and ends with the mount namespace. Exit status 77, with a sentence: cannot run here.
set -eu
folder=$1 orbit=$2 hangs=$3 packaging=$4
group=oagent-$$
skip() {
    echo "$*"
    exit 77
}
if [ "${MACHINE_INSIDE:-}" != yes ]; then
    unshare -m true 2>/dev/null || skip "a mount namespace"
    status=0
    MACHINE_INSIDE=yes MACHINE_GROUP=$group unshare -m --propagation private "$0" "$@" || status=$?
    for tree in /sys/fs/cgroup/unified /sys/fs/cgroup; do
        find "$tree/$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    exit $status
fi
# Version 2 alone, as current systemd wants it; the machine's own hierarchy stays as it is.
umount -R /sys/fs/cgroup || skip "the right to unmount"
mount -t cgroup2 cgroup2 /sys/fs/cgroup || skip "the right to mount control groups of version 2"
mkdir "/sys/fs/cgroup/$MACHINE_GROUP" || skip "the right to make a control group"
echo $$ >"/sys/fs/cgroup/$MACHINE_GROUP/cgroup.procs" || skip "the right to enter a control group"
mount -t tmpfs tmpfs "$folder" || skip "the right to mount"
mkdir "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$folder/root" || skip "overlay mounts"
root=$folder/root
[ -x "$root/sbin/init" ] || skip "systemd as init"
install -m 755 "$orbit" "$root/usr/bin/orbit"
install -m 755 "$hangs" "$root/usr/bin/oa-machine"
# Of the same name, and well for as long as it is left alone.
mkdir "$root/usr/lib/oa-well"
install -m 755 /bin/sleep "$root/usr/lib/oa-well/oa-machine"
mkdir -p "$root/etc/orbit" "$root/var/log/journal"
rm -rf "$root/etc/systemd/system" "$root/var/lib/private/orbit" "$root/var/lib/orbit"
mkdir -p "$root/etc/systemd/system"
units=$root/etc/systemd/system
cp "$packaging/orbit-agent.service" "$units/"
cat >"$root/etc/orbit/agent.toml" <<'END'
[limits]
actions_per_hour = 1
[export.journal]
enabled = true
[export.prometheus]
listen = "127.0.0.1:9106"
[[policy]]
name = "units"
match = { command = "oa-machine" }
watch = { limit = "1s", on_hang = "restart" }
END
for service in victim healthy; do
    case $service in
    victim) user=nobody program='/usr/bin/oa-machine ring2' ;;
    *) user=daemon program='/usr/lib/oa-well/oa-machine 1000' ;;
    esac
    cat >"$units/$service.service" <<END
[Service]
Type=exec
ExecStart=$program
User=$user
Restart=always
RestartSec=1s
END
done
cat >"$units/oatest.service" <<'END'
[Unit]
After=orbit-agent.service victim.service healthy.service
[Service]
Type=oneshot
ExecStart=/oatest
StandardOutput=file:/result
StandardError=file:/result.errors
ExecStopPost=/bin/systemctl --no-block exit
TimeoutStartSec=100s
END
cat >"$units/oatest.target" <<'END'
[Unit]
Requires=basic.target
Wants=victim.service healthy.service orbit-agent.service oatest.service
After=basic.target
AllowIsolate=yes
END
cat >"$root/oatest" <<'END'
#!/bin/sh
n=0
# The second hang comes after the only action that the budget has.
until journalctl -q MESSAGE_ID=8e6d5c4b3a294f1e8d7c6b5a49382744 -o cat | grep -q victim.service || [ $n -gt 80 ]; do
    n=$((n + 1))
    sleep 1
done
for service in victim healthy orbit-agent; do
    systemctl show $service -p Id -p ActiveState -p NRestarts
done
agent=$(systemctl show orbit-agent -p MainPID --value)
grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' "/proc/$agent/status"
echo "hangs $(journalctl -q MESSAGE_ID=5d0c1f6c0b6d4e0f9a3f6f7f0f0a6b11 -o cat | grep -c 'victim.service hangs (blocked, certain)')"
journalctl -q MESSAGE_ID=2f7e9a4d6c1b4f3e8d5a0b9c8e7f6a33 -o cat
stat -c '%n %a %U:%G' /run/orbit/agent.sock /run/orbit/active.json /var/lib/orbit/reports/
orbit agent status
journalctl -q -u orbit-agent -o cat >/agent.log
systemctl reload orbit-agent
n=0
until journalctl -q MESSAGE_ID=c3a1b2d4e5f64708a9bacbdcedfe0f55 -o cat | grep 'read again' || [ $n -gt 30 ]; do
    n=$((n + 1))
    sleep 1
done
echo whole
END
chmod 755 "$root/oatest"
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_API_VFS_WRITABLE=yes
timeout -k 10 170 systemd-nspawn -q -D "$root" --register=no --keep-unit --link-journal=no -b --console=pipe systemd.unit=oatest.target \
    </dev/null >"$folder/console" 2>&1 || true
cat "$folder/upper/result" "$folder/upper/result.errors" 2>/dev/null || skip "a container in which systemd boots: $(tail -n 3 "$folder/console")"
sed 's/^/agent.log: /' "$folder/upper/agent.log" 2>/dev/null || true
