#!/bin/sh
# Boots systemd in a container (systemd-nspawn) on an overlay of this machine's own root, runs a script there, and prints what it prints.
#
#   boot.sh FOLDER SETUP ARGUMENTS...
#
# FOLDER is an empty directory. `SETUP ROOT ARGUMENTS...` puts into ROOT, the container's root, what the trial needs, and the script /trial.
# The overlay is in memory and ends with the mount namespace. Exit status 77, with a sentence: cannot run here.
set -eu
folder=$1 setup=$2
group=oboot-$$
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
shift 2
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
mkdir -p "$root/var/log/journal"
rm -rf "$root/etc/systemd/system" "$root/var/lib/private/orbit" "$root/var/lib/orbit" "$root/etc/orbit"
mkdir -p "$root/etc/systemd/system"
"$setup" "$root" "$@"
chmod 755 "$root/trial"
cat >"$root/etc/systemd/system/trial.service" <<'END'
[Service]
Type=oneshot
ExecStart=/trial
StandardOutput=file:/result
StandardError=file:/result.errors
ExecStopPost=/bin/systemctl --no-block exit
TimeoutStartSec=150s
END
cat >"$root/etc/systemd/system/trial.target" <<'END'
[Unit]
Requires=basic.target
Wants=trial.service
After=basic.target
AllowIsolate=yes
END
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_API_VFS_WRITABLE=yes
timeout -k 10 200 systemd-nspawn -q -D "$root" --register=no --keep-unit --link-journal=no -b --console=pipe systemd.unit=trial.target \
    </dev/null >"$folder/console" 2>&1 || true
cat "$folder/upper/result" "$folder/upper/result.errors" 2>/dev/null || skip "a container in which systemd boots: $(tail -n 3 "$folder/console")"
