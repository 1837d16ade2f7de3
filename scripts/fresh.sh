#!/bin/sh
# Tries the project on a new machine of a release: `make demo` and `make test` in a minimal root of it.
#
#   scripts/fresh.sh RELEASE [COMMAND]     bookworm, trixie, or another release that debootstrap knows
#
# COMMAND, if given, is run by sh in the clone instead. Takes what is committed. The root is made by debootstrap once, in
# /var/tmp/orbit-fresh-RELEASE (ORBIT_FRESH names another directory), and gets this machine's Rust toolchain, with what cargo
# has fetched, and a clone; the rest the project installs itself, as it would on that machine. Needs root, debootstrap, network, 6 GB.
set -eu

release=${1:?"which release? scripts/fresh.sh trixie"}
command=${2:-"make demo && make test"}
root=${ORBIT_FRESH:-/var/tmp/orbit-fresh-$release}
clone=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)

if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "SKIP: needs root and debootstrap (apt-get install debootstrap)"
    exit 0
fi
if [ ! -e "$root/.made" ]; then
    mirror=$(sed -n 's/^URIs: *//p; s/^deb  *\(\[[^]]*\]  *\)\{0,1\}\([^ ]*\).*/\2/p' \
        /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null | head -1)
    [ -n "$mirror" ] || { echo "fresh.sh: no package archive is configured for apt-get" >&2 && exit 1; }
    echo "making a minimal root of $release in $root"
    debootstrap --variant=minbase --include=ca-certificates,make,git "$release" "$root" "$mirror"
    touch "$root/.made"
fi
# What this machine needs to reach its package archive, the new one does too.
for file in /etc/resolv.conf /etc/apt/apt.conf /etc/apt/apt.conf.d/*proxy*; do
    [ ! -e "$file" ] || cp -L "$file" "$root$file"
done
sysroot=$(rustc --print sysroot)
cargo_home=${CARGO_HOME:-$HOME/.cargo}
mkdir -p "$root/opt/rust" "$root/opt/cargo"
cmp -s "$sysroot/bin/rustc" "$root/opt/rust/bin/rustc" || cp -a "$sysroot/." "$root/opt/rust/"
for part in config.toml registry git; do
    [ ! -e "$cargo_home/$part" ] || cp -a "$cargo_home/$part" "$root/opt/cargo/"
done
rm -rf "$root/src.new"
git clone --quiet --no-hardlinks "$clone" "$root/src.new"
# What was built there before is built anew only where it changed.
[ ! -e "$root/src/target" ] || mv "$root/src/target" "$root/src.new/target"
rm -rf "$root/src"
mv "$root/src.new" "$root/src"

# Mounts of its own, which end with this command; processes are those of the machine, as they would be there.
export root command
# shellcheck disable=SC2016  # for the inner shell to expand
exec unshare --mount sh -euc '
    mount --make-rprivate /
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/run"
    exec chroot "$root" /usr/bin/env -i HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 CARGO_HOME=/opt/cargo \
        PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        sh -c "cd /src && $command"
'
