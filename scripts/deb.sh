#!/bin/sh
# A Debian package of the command, and its trial in a folder that serves as a root. The last line is PASS, FAIL or SKIP.
#
#   scripts/deb.sh               `make deb`; writes target/deb/orbit_VERSION_ARCH.deb
#   ORBIT=FILE scripts/deb.sh    packs this build of the command, and builds nothing
#
# In it: the command, the unit of the agent (not enabled), /etc/orbit/agent.toml, manual pages, completions. It depends on the C library of
# the machine that builds it, or a later one. The trial installs it by dpkg below target/deb/root, installs a later version over it with a
# changed configuration in place, removes it, purges it, and compares what is left with what was there. The scripts of the package run
# there without a chroot, so they do nothing to the services of this machine. DEBFULLNAME and DEBEMAIL name the maintainer.
set -eu
cd "$(dirname "$0")/.."

for tool in dpkg dpkg-deb readelf gzip; do
    if ! command -v "$tool" >/dev/null; then
        echo "SKIP: needs $tool (Debian: dpkg, binutils, gzip)"
        exit 0
    fi
done
target=${CARGO_TARGET_DIR:-target}
if [ -z "${ORBIT:-}" ]; then
    scripts/packages.sh build
    cargo build --release -p orbit-cli
    ORBIT=$target/release/orbit
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
architecture=$(dpkg --print-architecture)
out=$target/deb
rm -rf "$out"
mkdir -p "$out"
out=$(realpath "$out")
# The times of files in the package: those of the last commit, so that the same tree makes the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
umask 022

# $1 mode, $2 folder in the package, then files.
put() {
    mode=$1 to=$tree/$2
    shift 2
    mkdir -p "$to"
    install -m "$mode" "$@" "$to/"
}

# $1 version, then options of dpkg-deb. Writes the package, whose name is printed.
pack() {
    of=$1
    shift
    tree=$out/tree
    rm -rf "$tree"
    put 755 usr/bin "$ORBIT"
    put 644 usr/lib/systemd/system packaging/orbit-agent.service
    put 644 etc/orbit packaging/agent.toml
    put 644 usr/share/doc/orbit LICENSE-MIT LICENSE-APACHE README.md
    put 644 usr/share/doc/orbit/examples packaging/prometheus/orbit.rules.yml packaging/grafana/orbit.json packaging/otel/collector.yaml
    printf 'Licence: MIT OR Apache-2.0; the texts are beside this file.\n' >"$tree/usr/share/doc/orbit/copyright"
    gzip -9n <CHANGELOG.md >"$tree/usr/share/doc/orbit/changelog.gz"
    # Manual pages and completions are made from the command's own arguments.
    "$ORBIT" generate man "$out/made/man" >/dev/null
    "$ORBIT" generate completions "$out/made/completions" >/dev/null
    put 644 usr/share/man/man1 "$out"/made/man/*.1
    gzip -9n "$tree"/usr/share/man/man1/*.1
    put 644 usr/share/bash-completion/completions "$out/made/completions/bash/orbit"
    put 644 usr/share/zsh/vendor-completions "$out/made/completions/zsh/_orbit"
    put 644 usr/share/fish/vendor_completions.d "$out/made/completions/fish/orbit.fish"
    rm -rf "$out/made"

    mkdir "$tree/DEBIAN"
    glibc=$(readelf -V "$ORBIT" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
    cat >"$tree/DEBIAN/control" <<END
Package: orbit
Version: $of
Architecture: $architecture
Maintainer: ${DEBFULLNAME:-Orbit maintainers} <${DEBEMAIL:-orbit@localhost}>
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f 1)
Depends: libc6 (>= $glibc), libgcc-s1
Section: admin
Priority: optional
Description: finds hangs of running programs, says why, and puts programs back
 The command orbit: watch and why for hangs, keep for programs that are put
 back after a crash, hijack for rules on system calls, and the agent, which
 watches the services of a machine and is off until it is enabled.
END
    echo /etc/orbit/agent.toml >"$tree/DEBIAN/conffiles"
    # In another root, or without systemd, there is no service to manage.
    # shellcheck disable=SC2016 # These are the package's.
    for script in postinst prerm postrm; do
        printf '#!/bin/sh\nset -e\nhas_systemd() { [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; }\n' >"$tree/DEBIAN/$script"
        chmod 755 "$tree/DEBIAN/$script"
    done
    cat >>"$tree/DEBIAN/postinst" <<'END'
if [ "$1" = configure ] && has_systemd; then
    systemctl daemon-reload
    # Only one that runs: the new build takes over.
    if [ -n "$2" ]; then systemctl try-restart orbit-agent.service || true; fi
fi
END
    cat >>"$tree/DEBIAN/prerm" <<'END'
if [ "$1" = remove ] && has_systemd; then
    systemctl --no-reload disable --now orbit-agent.service || true
fi
END
    cat >>"$tree/DEBIAN/postrm" <<'END'
if has_systemd; then systemctl daemon-reload; fi
if [ "$1" = purge ]; then
    # Its reports; /var/lib/orbit is a link that systemd makes for a user of its own.
    rm -rf "$DPKG_ROOT/var/lib/private/orbit" "$DPKG_ROOT/var/lib/orbit"
    if [ -d "$DPKG_ROOT/etc/orbit" ]; then rmdir --ignore-fail-on-non-empty "$DPKG_ROOT/etc/orbit"; fi
fi
END
    dpkg-deb --root-owner-group "$@" --build "$tree" "$out" >/dev/null
    rm -rf "$tree"
    echo "$out/orbit_${of}_$architecture.deb"
}

fail() {
    echo "deb.sh: $*"
    echo FAIL
    exit 1
}

quick='-Zgzip -z1'
# shellcheck disable=SC2086 # Two words.
first=$(sha256sum "$(pack "$version" $quick)")
# shellcheck disable=SC2086
[ "$first" = "$(sha256sum "$(pack "$version" $quick)")" ] || fail "two packages of the same differ"
# shellcheck disable=SC2086
later=$(pack "$version+later" $quick)
package=$(pack "$version")
ls -l "$package"

# The trial. What dpkg itself writes is no part of the comparison.
root=$out/root
mkdir -p "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info"
: >"$root/var/lib/dpkg/status"
: >"$root/var/lib/dpkg/available"
found() { (cd "$root" && find . -path ./var/lib/dpkg -prune -o ! -type d -print -o -type d -empty -print | sort); }
as_root() { dpkg --root="$root" --log="$out/dpkg.log" --force-not-root --force-script-chrootless --force-depends --force-confold "$@" >>"$out/said" 2>&1; }
before=$(found)
as_root -i "$package" || fail "it is not installed: $(cat "$out/said")"
for file in usr/bin/orbit usr/lib/systemd/system/orbit-agent.service usr/share/man/man1/orbit.1.gz usr/share/man/man1/orbit-agent.1.gz \
    usr/share/bash-completion/completions/orbit etc/orbit/agent.toml; do
    [ -f "$root/$file" ] || fail "/$file is not there"
done
"$root/usr/bin/orbit" --version
"$root/usr/bin/orbit" agent --check "$root/etc/orbit/agent.toml" >/dev/null || fail "its configuration is not sound"
echo "installed: $(found | wc -l) files"
echo '# mine' >>"$root/etc/orbit/agent.toml"
as_root -i "$later" || fail "a later version is not installed: $(cat "$out/said")"
installed=$(dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${Version} ${db:Status-Status}' orbit)
[ "$installed" = "$version+later installed" ] || fail "after the upgrade: $installed"
grep -q '^# mine$' "$root/etc/orbit/agent.toml" || fail "the upgrade took a configuration that was changed"
echo "upgraded, the changed configuration is in place"
mkdir -p "$root/var/lib/orbit/reports"
: >"$root/var/lib/orbit/reports/hang.json"
as_root -r orbit || fail "it is not removed: $(cat "$out/said")"
left=$(found)
[ "$left" = "$(printf './etc/orbit/agent.toml\n./var/lib/orbit/reports/hang.json')" ] || fail "removed, and there is: $left"
echo "removed, configuration and reports are left"
as_root -P orbit || fail "it is not purged: $(cat "$out/said")"
[ "$(found)" = "$before" ] || fail "purged, and there is: $(found)"
echo "purged, nothing is left"
rm -rf "$root" "$later" "$out/said" "$out/dpkg.log"
echo PASS
