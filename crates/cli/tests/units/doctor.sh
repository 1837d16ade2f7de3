#!/bin/sh
# What doctor says in units with each policy of systemd about a kill for want of memory.
#
#   doctor.sh ROOT ORBIT
set -eu
root=$1
install -m 755 "$2" "$root/usr/bin/orbit"
for policy in continue stop kill; do
    cat >"$root/etc/systemd/system/main-$policy.service" <<END
[Service]
Type=oneshot
OOMPolicy=$policy
ExecStart=/bin/sh -c 'orbit doctor --json >/doctor-$policy.json; :'
END
done
cat >"$root/trial" <<'END'
#!/bin/sh
for policy in continue stop kill; do
    systemctl start main-$policy
    echo "$policy $(tr -d '\n' </doctor-$policy.json)"
done
echo whole
END
