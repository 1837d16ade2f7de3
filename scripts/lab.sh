#!/bin/sh
# System hang detection in a virtual machine whose CPUs are made to hang: Debian's 6.1 kernel, two processors, a module of
# ours (lab/module) that hangs a CPU on demand and lets go of it by itself.
#
#   scripts/lab.sh [--runs N] [--load SECONDS]     default: 14 runs (each kind on each CPU once), 20 s of load; two minutes
#   scripts/lab.sh --runs 154 --load 600           the full form, about twenty minutes
#
# Kernel and headers are unpacked below target/lab, never installed. The machine is emulated (ORBIT_VM_KVM=1 uses /dev/kvm);
# with ORBIT_LAB_ICOUNT=1 its clock counts its own instructions, so that a busy host does not make its CPUs stall.
# Prints JSON lines (lab/src/main.rs says which); status 0 if every hang of one CPU was found and nothing was alarmed falsely.
set -eu
cd "$(dirname "$0")/.."
runs=14 load=20
while [ $# -gt 0 ]; do
    case $1 in
    --runs) runs=$2 ;;
    --load) load=$2 ;;
    *)
        echo "usage: scripts/lab.sh [--runs N] [--load SECONDS]" >&2
        exit 2
        ;;
    esac
    shift 2
done
scripts/packages.sh build lab

TARGET=${CARGO_TARGET_DIR:-target}
mkdir -p "$TARGET/lab"
WORK=$(cd "$TARGET/lab" && pwd)
ROOT=$WORK/root
LIMIT=${ORBIT_VM_LIMIT:-$((120 + runs * 8 + load * 3))}

# The kernel, its headers and what its makefiles run, all of one version.
version() { find "$WORK/kernel/usr/src" -maxdepth 1 -name 'linux-headers-*-cloud-amd64' 2>/dev/null | sed 's/.*linux-headers-//' | sort -V | tail -n 1; }
release=$(version)
if [ -z "$release" ] || [ ! -e "$WORK/kernel/complete" ]; then
    release=$(apt-cache search --names-only '^linux-headers-6\.1\.[0-9.-]*-cloud-amd64$' | cut -d' ' -f1 | sort -V | tail -n 1)
    release=${release#linux-headers-}
    if [ -z "$release" ]; then
        echo "lab.sh: needs the packages of Debian's 6.1 kernel, which apt does not know here" >&2
        exit 1
    fi
    echo "downloading Linux $release and its headers (not installing them)" >&2
    rm -rf "$WORK/kernel" "$WORK/packages"
    mkdir -p "$WORK/packages"
    (cd "$WORK/packages" && apt-get -qq download "linux-image-$release" "linux-headers-$release" \
        "linux-headers-${release%-cloud-amd64}-common" linux-kbuild-6.1 2>/dev/null)
    for package in "$WORK"/packages/*.deb; do
        dpkg-deb -x "$package" "$WORK/kernel"
    done
    rm -r "$WORK/packages"
    # Made to be found in /usr.
    for headers in "$WORK"/kernel/usr/src/linux-headers-*; do
        sed -i "s|^include /usr/src/|include $WORK/kernel/usr/src/|" "$headers/Makefile"
        ln -sfn "$WORK/kernel/usr/lib/linux-kbuild-6.1/scripts" "$headers/scripts"
        ln -sfn "$WORK/kernel/usr/lib/linux-kbuild-6.1/tools" "$headers/tools"
    done
    touch "$WORK/kernel/complete"
fi

rm -rf "$ROOT" "$WORK/module"
cp -r lab/module "$WORK/module"
compiler=gcc-12
command -v $compiler >/dev/null 2>&1 || compiler=gcc
if ! make -s -C "$WORK/kernel/usr/src/linux-headers-$release" M="$WORK/module" CC=$compiler modules >"$WORK/module.log" 2>&1; then
    cat "$WORK/module.log" >&2
    exit 1
fi
cargo build --quiet --release -p orbit-lab

mkdir -p "$ROOT/bin" "$ROOT/proc" "$ROOT/sys" "$ROOT/dev" "$ROOT/tmp"
cp "$(command -v busybox)" "$ROOT/bin/busybox"
cp "$WORK/module/orbit_hang.ko" "$ROOT/"
program=$(cd "$TARGET/release" && pwd)/orbit-lab
cp "$program" "$ROOT/bin/orbit-lab"
for library in $(ldd "$program" | grep -o '/[^ ]*'); do
    mkdir -p "$ROOT$(dirname "$library")"
    cp -L "$library" "$ROOT$library"
done
cat >"$ROOT/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp RUST_BACKTRACE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
echo 1 >/proc/sys/kernel/printk
insmod /orbit_hang.ko && orbit-lab $runs $load
echo "lab ended with \$?"
poweroff -f
END
chmod +x "$ROOT/init"
(cd "$ROOT" && find . | cpio --quiet -o -H newc | gzip -1) >"$WORK/initrd"

accelerator="-accel tcg,thread=multi" cpu=max
[ -z "${ORBIT_LAB_ICOUNT:-}" ] || accelerator="-accel tcg,thread=single -icount shift=3,sleep=off"
[ -z "${ORBIT_VM_KVM:-}" ] || accelerator="-accel kvm" cpu=host
log=$WORK/console.log
echo "booting Linux $release, at most $LIMIT s; console: $log" >&2
# The kernel's own detectors would only add noise: off.
# shellcheck disable=SC2086  # options with their values
timeout --kill-after=10 "$LIMIT" qemu-system-x86_64 $accelerator -cpu "$cpu" -smp 2 -m 1024 -nographic -no-reboot -nodefaults \
    -serial stdio -kernel "$WORK/kernel/boot/vmlinuz-$release" -initrd "$WORK/initrd" \
    -append "console=ttyS0 loglevel=1 panic=-1 nowatchdog" </dev/null 2>&1 | tr -d '\r' >"$log" || true
grep -o '{".*}' "$log" || true
if ! grep -q '^lab ended with' "$log"; then
    echo "lab.sh: the machine did not come to the end:" >&2
    tail -n 40 "$log" >&2
    exit 1
fi
grep -q '^lab ended with 0$' "$log" && grep -q '{"load":.*"false_alarms":0,' "$log"
