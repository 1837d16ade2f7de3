#!/bin/sh
# The agent's shipped unit beside a service that hangs and a healthy one.
#
#   agent.sh ROOT ORBIT HANGS PACKAGING
set -eu
root=$1 orbit=$2 hangs=$3 packaging=$4
units=$root/etc/systemd/system
install -m 755 "$orbit" "$root/usr/bin/orbit"
install -m 755 "$hangs" "$root/usr/bin/oa-machine"
# Of the same name, and well for as long as it is left alone.
mkdir "$root/usr/lib/oa-well"
install -m 755 /bin/sleep "$root/usr/lib/oa-well/oa-machine"
mkdir -p "$root/etc/orbit"
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
cat >"$root/trial" <<'END'
#!/bin/sh
systemctl start victim healthy orbit-agent
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
journalctl -q -u orbit-agent -o cat | sed 's/^/agent.log: /'
systemctl reload orbit-agent
n=0
until journalctl -q MESSAGE_ID=c3a1b2d4e5f64708a9bacbdcedfe0f55 -o cat | grep 'read again' || [ $n -gt 30 ]; do
    n=$((n + 1))
    sleep 1
done
echo whole
END
