#!/bin/sh
# System hang detection in virtual machines whose kernel is made to hang: Debian's 6.1, two processors, a module of ours that
# hangs CPUs on demand and a driver of ours that is broken at random (tools/lab/module).
#
#   scripts/lab.sh [--runs N] [--load SECONDS]     each kind of hang on one CPU in turn, then load: default 14 runs, 20 s
#   scripts/lab.sh --rivals                        the same hangs, long enough for the kernel's own detectors; 10 minutes
#   scripts/lab.sh --every ROUNDS                  every CPU hung: a heartbeat, panic settings; 10 minutes a round
#   scripts/lab.sh --guard ACTION                  orbit watch --system=ACTION: report, crash or reboot
#   scripts/lab.sh --keys                          services on a CPU that has protection keys: their test, and its costs in cycles
#   scripts/lab.sh --faults COUNT [--seed S] [--first N]   faults at random in a driver's code; --first N --faults 1: fault N again
#   scripts/lab.sh --full                          154 runs, 600 s of load, and all of the above; two hours
#   scripts/lab.sh --short                         7 runs, 2 s of load; a minute
#
# Options add up. Kernel and headers are unpacked below target/lab, never installed, and downloaded once. The machines are emulated
# (ORBIT_VM_KVM=1 uses /dev/kvm). ORBIT_LAB_PROGRAM and ORBIT_LAB_ORBIT name an orbit-lab and an orbit that are built already.
# Prints JSON lines (tools/lab/src says which); status 0 if every hang of one CPU was found, nothing was alarmed falsely and
# the actions acted; 77 if something is missing, which the last line names.
set -eu
cd "$(dirname "$0")/.."
usage() {
    sed -n '5,12s/^# *//p' "$0" >&2
    exit 2
}
runs='' load='' parts='' faults=0 seed=1 first=0 guard='' keys=''
[ $# -gt 0 ] || set -- --runs 14 --load 20
while [ $# -gt 0 ]; do
    option=$1
    shift
    case $option in
    --rivals) parts="$parts --rivals" ;;
    --keys) keys=1 parts="$parts --keys" ;;
    --short) runs=7 load=2 ;;
    --full) runs=154 load=600 guard=1 keys=1 faults=300 parts="$parts --keys --rivals --every 1 --guard report --guard crash --guard reboot" ;;
    --guard)
        case ${1:-} in report | crash | reboot) guard=1 parts="$parts --guard $1" ;; *) usage ;; esac
        shift
        ;;
    --runs | --load | --every | --faults | --seed | --first)
        case ${1:-} in '' | *[!0-9]*) usage ;; esac
        case $option in
        --runs) runs=$1 ;;
        --load) load=$1 ;;
        --every) parts="$parts --every $1" ;;
        --faults) faults=$1 ;;
        --seed) seed=$1 ;;
        --first) first=$1 ;;
        esac
        shift
        ;;
    *) usage ;;
    esac
done
[ -z "$runs$load" ] || parts="$parts --hangs ${runs:-14} ${load:-20}"
[ "$faults" = 0 ] || parts="$parts --faults $seed $first $faults"

missing() {
    echo "lab.sh: needs $1" >&2
    exit 77
}
scripts/packages.sh build lab >&2 || missing "the packages of: scripts/packages.sh build lab"

TARGET=${CARGO_TARGET_DIR:-target}
mkdir -p "$TARGET/lab"
LAB=$(cd "$TARGET/lab" && pwd)

# The kernel, its headers and what its makefiles run, all of one version. Made apart and put in place whole.
version() { find "$LAB/kernel/usr/src" -maxdepth 1 -name 'linux-headers-*-cloud-amd64' 2>/dev/null | sed 's/.*linux-headers-//' | sort -V | tail -n 1; }
if [ ! -e "$LAB/kernel/complete" ]; then
    release=$(apt-cache search --names-only '^linux-headers-6\.1\.[0-9.-]*-cloud-amd64$' 2>/dev/null | cut -d' ' -f1 | sort -V | tail -n 1)
    release=${release#linux-headers-}
    [ -n "$release" ] || missing "the packages of Debian's 6.1 kernel, which apt does not know here"
    echo "downloading Linux $release and its headers (not installing them)" >&2
    new=$(mktemp -d "$LAB/new.XXXXXX")
    (cd "$new" && apt-get -qq download "linux-image-$release" "linux-headers-$release" \
        "linux-headers-${release%-cloud-amd64}-common" linux-kbuild-6.1 >/dev/null 2>&1) || {
        rm -rf "$new"
        missing "the packages of Linux $release, which could not be downloaded"
    }
    for package in "$new"/*.deb; do
        dpkg-deb -x "$package" "$new/kernel"
    done
    # Made to be found in /usr.
    for headers in "$new"/kernel/usr/src/linux-headers-*; do
        sed -i "s|^include /usr/src/|include $LAB/kernel/usr/src/|" "$headers/Makefile"
        ln -sfn "$LAB/kernel/usr/lib/linux-kbuild-6.1/scripts" "$headers/scripts"
        ln -sfn "$LAB/kernel/usr/lib/linux-kbuild-6.1/tools" "$headers/tools"
    done
    touch "$new/kernel/complete"
    rm -rf "$LAB/kernel"
    mv "$new/kernel" "$LAB/kernel"
    rm -rf "$new"
fi
release=$(version)

WORK=$(mktemp -d "$LAB/run.XXXXXX")
ROOT=$WORK/root
kept=''
# shellcheck disable=SC2317  # the trap calls it
cleanup() {
    [ -n "$kept" ] || rm -rf "$WORK"
    rm -rf "$ROOT" "$WORK/module"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

cp -r tools/lab/module "$WORK/module"
compiler=gcc-12
command -v $compiler >/dev/null 2>&1 || compiler=gcc
if ! make -s -C "$LAB/kernel/usr/src/linux-headers-$release" M="$WORK/module" CC=$compiler modules >"$WORK/module.log" 2>&1; then
    cat "$WORK/module.log" >&2
    exit 1
fi
program=${ORBIT_LAB_PROGRAM:-}
if [ -z "$program" ]; then
    cargo build --quiet --release -p orbit-lab
    program=$TARGET/release/orbit-lab
fi
mkdir -p "$ROOT/bin" "$ROOT/proc" "$ROOT/sys" "$ROOT/dev" "$ROOT/tmp"
cp "$program" "$ROOT/bin/orbit-lab"
if [ -n "$guard" ]; then
    orbit=${ORBIT_LAB_ORBIT:-}
    if [ -z "$orbit" ]; then
        cargo build --quiet --release -p orbit-cli
        orbit=$TARGET/release/orbit
    fi
    cp "$orbit" "$ROOT/bin/orbit"
fi
if [ -n "$keys" ]; then
    test=${ORBIT_LAB_KEYS:-}
    if [ -z "$test" ]; then
        test=$(cargo test --release -p orbit-services --test keys --no-run --message-format=json 2>/dev/null |
            sed -n 's/.*"executable":"\([^"]*keys-[^"]*\)".*/\1/p' | tail -n 1)
    fi
    cp "$test" "$ROOT/bin/orbit-keys-test"
fi
cp "$(command -v busybox)" "$ROOT/bin/busybox"
for module in orbit_hang orbit_crc_00; do
    objcopy --strip-debug "$WORK/module/$module.ko" "$ROOT/$module.ko"
done
for library in $(ldd "$ROOT"/bin/orbit* | grep -o '/[^ ]*\.so[^ ]*' | sort -u); do
    mkdir -p "$ROOT$(dirname "$library")"
    cp -L "$library" "$ROOT$library"
done
# The kernel hands `orbit_lab=...` on its command line to it as a variable.
cat >"$ROOT/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp RUST_BACKTRACE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
insmod /orbit_hang.ko
orbit-lab guest $(echo "$orbit_lab" | tr , ' ')
poweroff -f
END
chmod +x "$ROOT/init"
(cd "$ROOT" && find . | cpio --quiet -o -H newc | gzip -1) >"$WORK/initrd"

status=0
# shellcheck disable=SC2086  # options with their values
"$program" host --kernel "$LAB/kernel/boot/vmlinuz-$release" --initrd "$WORK/initrd" --work "$WORK" $parts || status=$?
if [ $status != 0 ]; then
    kept=1
    echo "lab.sh: the machines' consoles are in $WORK" >&2
fi
exit $status
