#!/bin/sh
# Runs the tests of packages on another kernel, in a virtual machine of a minute: by default Debian 12's own 6.1, which has
# neither asynchronous write tracking nor PAGEMAP_SCAN but has control groups of version 2.
#
#   scripts/old-kernel.sh [PACKAGE...]        default: orbit-linux orbit
#   ORBIT_VM_KERNEL=/boot/vmlinuz-... scripts/old-kernel.sh orbit     that kernel instead
#
# The kernel is unpacked below target/old-kernel, never installed. The machine has two processors, 2 GiB, no network and no
# disk: everything is in its initial RAM disk. It is emulated (a minute or two); ORBIT_VM_KVM=1 uses /dev/kvm.
# The last line is: N passed, N failed, N skipped.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- orbit-linux orbit
scripts/packages.sh build lab

TARGET=${CARGO_TARGET_DIR:-target}
mkdir -p "$TARGET/old-kernel"
WORK=$(cd "$TARGET/old-kernel" && pwd)
ROOT=$WORK/root
LIMIT=${ORBIT_VM_LIMIT:-900}

kernel=${ORBIT_VM_KERNEL:-}
if [ -z "$kernel" ]; then
    kernel=$(find "$WORK/kernel" -name 'vmlinuz-*' 2>/dev/null | sort -V | tail -n 1)
fi
if [ -z "$kernel" ]; then
    package=$(apt-cache search --names-only '^linux-image-6\.1\.[0-9.-]*-cloud-amd64$' | cut -d' ' -f1 | sort -V | tail -n 1)
    if [ -z "$package" ]; then
        echo "old-kernel.sh: apt knows no Debian 6.1 kernel: name one by ORBIT_VM_KERNEL=/path/to/vmlinuz" >&2
        exit 1
    fi
    echo "downloading $package (not installing it)"
    (cd "$WORK" && rm -f ./linux-image-*.deb && apt-get -qq download "$package" 2>/dev/null && dpkg-deb -x linux-image-*.deb kernel && rm linux-image-*.deb)
    kernel=$(find "$WORK/kernel" -name 'vmlinuz-*' | sort -V | tail -n 1)
fi

rm -rf "$ROOT"
mkdir -p "$ROOT/bin" "$ROOT/proc" "$ROOT/sys" "$ROOT/dev" "$ROOT/tmp" "$ROOT/etc"
cp "$(command -v busybox)" "$ROOT/bin/busybox"
echo 'root:x:0:0::/:/bin/sh' >"$ROOT/etc/passwd"

# Everything keeps its path: tests know those of the programs they start, and the loader those of its libraries.
add() {
    mkdir -p "$ROOT$(dirname "$1")"
    cp -L "$1" "$ROOT$1"
}
cargo build --quiet --release -p orbit-linux --bin orbit-contained
runner=$(cd "$TARGET/release" && pwd)/orbit-contained
add "$runner"
: >"$ROOT/tests"
for package in "$@"; do
    directory=$(cargo tree -p "$package" --depth 0 --prefix none | sed -n '1s/.*(\(\/[^)]*\)).*/\1/p')
    mkdir -p "$ROOT$directory"
    messages=$(cargo test --release --no-run -p "$package" --message-format=json 2>/dev/null)
    for program in $(echo "$messages" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | sort -u); do
        add "$program"
        for library in $(ldd "$program" | grep -o '/[^ ]*'); do
            [ -e "$ROOT$library" ] || add "$library"
        done
    done
    for program in $(echo "$messages" | grep '"test":true},"features"' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'); do
        # The emulator's debug registers miss and repeat hits: nothing would be learnt.
        case ${ORBIT_VM_KVM:-}$program in /*/perf_*) continue ;; esac
        echo "$package $directory $program" >>"$ROOT/tests"
    done
done

cat >"$ROOT/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp RUST_BACKTRACE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
chmod 1777 /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
echo 3 >/proc/sys/kernel/printk
mkdir /sys/fs/cgroup/main
echo \$\$ >/sys/fs/cgroup/main/cgroup.procs
# \$1 how it is run, then package, directory, program.
one() {
    echo "     Running \$2 \$1 \${4##*/}"
    cd "\$3"
    prefix=
    [ "\$1" = root ] || prefix=$runner
    timeout 180 \$prefix "\$4" --show-output </dev/null 2>&1
    status=\$?
    [ \$status = 0 ] || echo "error: \$2 \$1 \${4##*/} ended with \$status"
}
while read -r package directory program; do
    one root "\$package" "\$directory" "\$program"
    one contained "\$package" "\$directory" "\$program"
done </tests
echo "Linux \$(uname -r): end of tests"
poweroff -f
END
chmod +x "$ROOT/init"
(cd "$ROOT" && find . | cpio --quiet -o -H newc | gzip -1) >"$WORK/initrd"

accelerator="-accel tcg,thread=multi" cpu=max
[ -z "${ORBIT_VM_KVM:-}" ] || accelerator="-accel kvm" cpu=host
echo "booting ${kernel##*/}"
log=$WORK/console.log
# shellcheck disable=SC2086  # options with their values
timeout --kill-after=10 "$LIMIT" qemu-system-x86_64 $accelerator -cpu "$cpu" -smp 2 -m 2048 -nographic -no-reboot -nodefaults \
    -serial stdio -kernel "$kernel" -initrd "$WORK/initrd" -append "console=ttyS0 loglevel=3 panic=-1" \
    </dev/null 2>&1 | tr -d '\r' >"$log" || true

passed=$(sed -n 's/^test result:.* \([0-9][0-9]*\) passed;.*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
failed=$(grep -c '^error: .* ended with' "$log" || true)
skipped=$(grep -c '^SKIP:' "$log" || true)
if ! grep -q 'end of tests$' "$log"; then
    failed=$((failed + 1))
    echo "the machine did not come to the end:"
    tail -n 40 "$log"
fi
awk '/^ +Running / {name = $0} /^test .*FAILED|panicked at|^error: / {if (name != "") print name; name = ""; print}' "$log"
grep 'end of tests$' "$log" || true
echo "console: $log"
[ "$skipped" -gt "$passed" ] || passed=$((passed - skipped))
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
