#!/bin/sh
# One file of the orbit command that needs no other file, and its trial where there is nothing else. The last line is PASS, FAIL or SKIP.
#
#   scripts/static.sh [RELEASE...]     `make static`; RELEASE: bookworm, trixie, or another that debootstrap knows
#
# Builds target/static/orbit: glibc is linked in. It has a target directory of its own, so that the usual build stays as it is, and takes
# some ten minutes of CPU the first time. Tries it in an empty root, which has that file, two static programs and /proc; then in a
# minimal root of each RELEASE with its redis-server, made by debootstrap once, in /var/tmp/orbit-static-RELEASE (ORBIT_STATIC names
# another beginning). The trials need root, those of a RELEASE debootstrap and network too. What is tried is printed, a line each.
set -eu
cd "$(dirname "$0")/.."

scripts/packages.sh build
target=${CARGO_TARGET_DIR:-target}/static
host=$(rustc -vV | sed -n 's/^host: //p')
case $host in
*-linux-gnu) ;;
*)
    echo "SKIP: needs a toolchain for glibc, this is $host"
    exit 0
    ;;
esac
# With --target the flags hold for the command alone: build scripts and macros are linked as usual.
variable=CARGO_TARGET_$(echo "$host" | tr 'a-z-' 'A-Z_')_RUSTFLAGS
env "$variable=${RUSTFLAGS:-} -C target-feature=+crt-static" \
    cargo build --release -p orbit-cli --target "$host" --target-dir "$target"
cp "$target/$host/release/orbit" "$target/orbit"
orbit=$(realpath "$target/orbit")
ls -l "$orbit"
if readelf -ld "$orbit" | grep -E 'INTERP|NEEDED'; then
    echo "static.sh: $orbit needs a loader or a library"
    echo FAIL
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "SKIP: the trials need root"
    exit 0
fi

scratch=$(mktemp -d "${TMPDIR:-/tmp}/orbit-static.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$scratch/root/proc"
cp "$orbit" "$scratch/root/orbit"
cc -static -g -O1 -pthread crates/cli/tests/c/hangs.c -o "$scratch/root/hangs"
cc -static -O1 -pthread -D_GNU_SOURCE crates/keep/keep/tests/c/faults.c -o "$scratch/root/faults"

export root scratch orbit
failed=0
root=$scratch/root
unshare --mount sh scripts/static/empty.sh || failed=1

if [ $# -gt 0 ] && ! command -v debootstrap >/dev/null; then
    echo "SKIP: $* needs debootstrap (apt-get install debootstrap)"
    shift $#
fi
mirror=$(sed -n 's/^URIs: *//p; s/^deb  *\(\[[^]]*\]  *\)\{0,1\}\([^ ]*\).*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null | head -1)
for release in "$@"; do
    root=${ORBIT_STATIC:-/var/tmp/orbit-static}-$release
    if [ ! -e "$root/.made" ]; then
        echo "making a minimal root of $release with redis-server in $root"
        debootstrap --variant=minbase --include=redis-server "$release" "$root" "$mirror" >"$scratch/debootstrap" ||
            { tail -5 "$scratch/debootstrap" && echo FAIL && exit 1; }
        touch "$root/.made"
    fi
    unshare --mount sh scripts/static/release.sh "$release" || failed=1
done
[ $failed = 0 ] && echo PASS || echo FAIL
exit $failed
