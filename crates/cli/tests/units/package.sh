#!/bin/sh
# A Debian package of this build: installed, enabled, upgraded, removed and purged by dpkg under systemd.
#
#   package.sh ROOT PACKAGE LATER
set -eu
root=$1
cp "$2" "$root/orbit.deb"
cp "$3" "$root/later.deb"
cat >"$root/trial" <<'END'
#!/bin/sh
state() { echo "$1: $(systemctl is-enabled orbit-agent 2>&1) $(systemctl is-active orbit-agent 2>&1)"; }
main() { systemctl show -p MainPID --value orbit-agent; }
quietly() { "$@" >/said 2>&1 || { echo "$* failed"; cat /said; }; }
quietly dpkg -i /orbit.deb
state installed
quietly systemctl enable --now orbit-agent
state enabled
first=$(main)
echo '# mine' >>/etc/orbit/agent.toml
quietly dpkg --force-confold -i /later.deb
state upgraded
[ "$(main)" != "$first" ] && echo 'the new build has taken over'
grep -c '^# mine$' /etc/orbit/agent.toml
orbit agent status >/dev/null && echo answers
quietly dpkg -r orbit
state removed
pgrep -x orbit && echo 'a process is left'
quietly dpkg -P orbit
ls -d /usr/bin/orbit /etc/orbit /var/lib/orbit /var/lib/private/orbit /run/orbit /etc/systemd/system/multi-user.target.wants/orbit-agent.service 2>/dev/null
systemctl --failed --no-legend --plain | grep orbit
echo whole
END
