#!/bin/sh
# Runs the tests of packages on another kernel, in a virtual machine: by default Debian 12's own 6.1, which has neither
# asynchronous write tracking nor PAGEMAP_SCAN, but kprobes, and control groups of version 2 with memory and cpu.
#
#   scripts/old-kernel.sh [PACKAGE...]        default: orbit-linux orbit orbit-c orbit-inspect
#   ORBIT_VM_KERNEL=/boot/vmlinuz-... scripts/old-kernel.sh orbit     that kernel instead
#   ORBIT_VM_ONLY=REGEX scripts/old-kernel.sh orbit                   programs whose "package way name" it matches
#
# A test program runs in one or more of these ways:
#   root        with all rights; main below the root of the control groups
#   contained   as an ordinary user under a model of Docker's seccomp profile, without a control group of his own
#   delegated   as an ordinary user in a subgroup of one that is his own, as `systemd --user` gives it: tests of limits and ends
#   undivided   as an ordinary user in a group of his own, but without a subgroup: the kernel lets such a group have no others
#
# The kernel is unpacked below target/old-kernel, never installed. The machine has two processors, 3 GiB, no network and no
# disk: everything, the system's compiler too, is in its initial RAM disk, at its own path. It is emulated, ten or more times
# slower than the host (ORBIT_VM_KVM=1 uses /dev/kvm): random tests are shorter, a program has ORBIT_VM_PROGRAM_LIMIT
# seconds, the machine ORBIT_VM_LIMIT. Programs that are not in it (python3, go, redis-server) make their tests skips.
# Prints a line a program, the output of what failed, why tests were skipped; the last line is: N passed, N failed, N skipped.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- orbit-linux orbit orbit-c orbit-inspect
scripts/packages.sh build lab

TARGET=${CARGO_TARGET_DIR:-target}
mkdir -p "$TARGET/old-kernel" "$TARGET/tmp"
TARGET=$(cd "$TARGET" && pwd)
WORK=$TARGET/old-kernel
ROOT=$WORK/root
LIMIT=${ORBIT_VM_LIMIT:-5400}
PROGRAM_LIMIT=${ORBIT_VM_PROGRAM_LIMIT:-600}
log=$WORK/console.log

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

# One build for all, so that each package is built once.
chosen=
for package in "$@"; do
    chosen="$chosen -p $package"
done
# shellcheck disable=SC2086  # options with their values
if ! cargo test --release --no-run $chosen --message-format=json >"$WORK/build.json" 2>"$WORK/build.log"; then
    cat "$WORK/build.log" >&2
    exit 1
fi
cargo build --quiet --release -p orbit-linux --bin orbit-contained
runner=$TARGET/release/orbit-contained

rm -rf "$ROOT"
mkdir -p "$ROOT/usr/bin" "$ROOT/usr/lib" "$ROOT/usr/lib64" "$ROOT/proc" "$ROOT/sys" "$ROOT/dev" "$ROOT/tmp" "$ROOT/etc"
mkdir -p "$ROOT$TARGET/tmp"
# Links into /usr, as on this machine.
for directory in bin lib lib64; do
    if [ -L /$directory ]; then cp -a /$directory "$ROOT/"; else mkdir "$ROOT/$directory"; fi
done
cp "$(command -v busybox)" "$ROOT/bin/busybox"
printf 'root:x:0:0::/:/bin/sh\norbit:x:1000:1000::/tmp:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n' >"$ROOT/etc/passwd"

# Everything keeps its path: tests know those of the programs they start, and the loader those of its libraries.
add() {
    mkdir -p "$ROOT$(dirname "$1")"
    cp -L "$1" "$ROOT$1"
}
libraries() {
    for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
        [ -e "$ROOT$library" ] || add "$library"
    done
}
# Symbols stay, for names in stacks; lines of source go, but for the programs whose tests read them: they are most of a program, and
# all of it is in memory.
add_program() {
    mkdir -p "$ROOT$(dirname "$1")"
    case ${1##*/} in
    orbit-[0-9a-f]* | stacks_of_languages-*) cp "$1" "$ROOT$1" ;;
    *) strip --strip-debug -o "$ROOT$1" "$1" ;;
    esac
    libraries "$1"
}

# The compiler, as dpkg has it; without it what needs cc is skipped.
version=$(gcc -dumpversion 2>/dev/null | cut -d. -f1)
for package in gcc g++ cpp binutils binutils-x86-64-linux-gnu libc6-dev linux-libc-dev "gcc-$version" "g++-$version" \
    "cpp-$version" "gcc-$version-x86-64-linux-gnu" "g++-$version-x86-64-linux-gnu" "cpp-$version-x86-64-linux-gnu" \
    "libgcc-$version-dev" "libstdc++-$version-dev"; do
    dpkg -L "$package" 2>/dev/null || true
done | grep -Ev '^/usr/share|/lto1$|/libasan|/liblsan|/libtsan|/libubsan|/plugin/|gold|dwp' | sort -u | while read -r path; do
    [ ! -f "$path" ] || echo "${path#/}"
done >"$WORK/compiler"
(cd / && cpio --quiet -pdm "$ROOT" <"$WORK/compiler")
grep -E '(/bin/|/cc1|/collect2)' "$WORK/compiler" | while read -r path; do
    libraries "/$path"
done
for name in cc c++; do
    [ ! -e "$ROOT/usr/bin/gcc" ] || ln -sf "$(echo $name | sed 's/cc/gcc/; s/c++/g++/')" "$ROOT/usr/bin/$name"
done
for library in libc.so.6 libm.so.6 libmvec.so.1 libgcc_s.so.1 libstdc++.so.6 libresolv.so.2; do
    path=$(gcc -print-file-name=$library)
    case $path in /*) [ -e "$ROOT$path" ] || add "$(realpath -s "$path")" ;; esac
done
# What C programs are built from and with.
find crates examples scripts -path '*/target' -prune -o \( -name '*.c' -o -name '*.h' -o -name '*.hpp' -o -name '*.cpp' -o -name '*.go' -o -name '*.sh' \
    -o -name '*.py' -o -name Cargo.toml \) -print >"$WORK/sources"
here=$(pwd)
mkdir -p "$ROOT$here"
cpio --quiet -pdm "$ROOT$here" <"$WORK/sources"
for library in liborbit_c.so liborbit_c.a librmk_section.a; do
    [ ! -e "$TARGET/release/deps/$library" ] || add "$TARGET/release/deps/$library"
done

add_program "$runner"
: >"$ROOT/tests"
sed -n 's/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"test":\(true\|false\)},"features".*"executable":"\([^"]*\)".*/\2 \1 \3/p' \
    "$WORK/build.json" | sort -u >"$WORK/programs"
while read -r test directory program; do
    add_program "$program"
    [ "$test" = true ] || continue
    name=${program##*/}
    name=${name%-*}
    # The emulator's debug registers miss and repeat hits: nothing would be learnt.
    case ${ORBIT_VM_KVM:-}$name in perf_*) continue ;; esac
    case ${directory##*/}/$name in
    orbit/limits_delegated) ways=delegated ;;
    orbit/limits_fall_back) ways="contained undivided" ;;
    linux/cgroup_* | orbit/limits_*) ways="root delegated" ;;
    orbit/orbit | orbit/main_killed | orbit/crash_campaign) ways="root contained delegated" ;;
    linux/* | orbit/* | orbit-c/*) ways="root contained" ;;
    *) ways=root ;;
    esac
    for way in $ways; do
        echo "${directory##*/} $way $name" | grep -Eq "${ORBIT_VM_ONLY:-.}" || continue
        echo "${directory##*/} $way $name $directory $program" >>"$ROOT/tests"
    done
done <"$WORK/programs"

cat >"$ROOT/init" <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/bin:/usr/bin HOME=/tmp TMPDIR=/tmp RUST_BACKTRACE=1 ORBIT_VM=1
export ORBIT_CAMPAIGN_N=${ORBIT_CAMPAIGN_N:-72} ORBIT_STEPS=${ORBIT_STEPS:-4000} ORBIT_FUZZ_SECONDS=${ORBIT_FUZZ_SECONDS:-2}
export ORBIT_SCANS=${ORBIT_SCANS:-200}
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tracefs trace /sys/kernel/tracing
chmod 1777 /tmp /dev/shm $TARGET/tmp
# After what the firmware has written.
echo
ip link set lo up
echo 3 >/proc/sys/kernel/printk

# As systemd lays it out: services at the root; a user's own groups below one that is his, which holds no process itself.
groups=/sys/fs/cgroup
mount -t cgroup2 cgroup \$groups
mkdir \$groups/main
echo \$\$ >\$groups/main/cgroup.procs
echo '+memory +cpu' >\$groups/cgroup.subtree_control
mkdir -p \$groups/user/main \$groups/alone
for file in user user/main alone; do
    chown 1000:1000 \$groups/\$file \$groups/\$file/cgroup.procs \$groups/\$file/cgroup.subtree_control
done

# A program as an ordinary user in that group.
as_user() {
    (
        # Moves this very shell, whose number is not in \$\$.
        sh -c 'echo \$PPID' >\$groups/\$1/cgroup.procs
        timeout $PROGRAM_LIMIT su -s /bin/sh orbit -c "exec '\$2' --show-output" </dev/null 2>&1
    )
}
# Whether control groups of orbits are gone, within ten seconds.
clean() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        left=\$(find \$groups -name 'orbit-*' | tr '\n' ' ')
        [ -n "\$left" ] || return 0
        sleep 1
    done
    return 1
}
# Package, way, name, directory, program.
one() {
    echo "     Running \$1 \$2 \$3"
    cd "\$4"
    case \$2 in
    root) timeout $PROGRAM_LIMIT "\$5" --show-output </dev/null 2>&1 ;;
    contained) ORBIT_CONTAINED=1 timeout $PROGRAM_LIMIT $runner "\$5" --show-output </dev/null 2>&1 ;;
    delegated) as_user user/main "\$5" ;;
    undivided) as_user alone "\$5" ;;
    esac
    status=\$?
    [ \$status = 0 ] || echo "error: \$1 \$2 \$3 ended with \$status"
    clean || echo "error: \$1 \$2 \$3 left control groups: \$left"
}
while read -r package way name directory program; do
    one "\$package" "\$way" "\$name" "\$directory" "\$program"
done </tests
echo "Linux \$(uname -r): end of tests"
poweroff -f
END
chmod +x "$ROOT/init"
(cd "$ROOT" && find . | cpio --quiet -o -H newc) >"$WORK/initrd"

accelerator="-accel tcg,thread=multi" cpu=max
[ -z "${ORBIT_VM_KVM:-}" ] || accelerator="-accel kvm" cpu=host
echo "booting ${kernel##*/}: $(wc -l <"$ROOT/tests") runs, at most $LIMIT s; console: $log"
# The console goes to a file line by line, to be read meanwhile. What the kernel gets is for the emulator's
# speed, and against a check of its timer that fails when the host stalls the emulator.
rm -f "$log"
# shellcheck disable=SC2086  # options with their values
timeout --kill-after=10 "$LIMIT" qemu-system-x86_64 $accelerator -cpu "$cpu" -smp 2 -m 3072 -nographic -no-reboot -nodefaults \
    -serial "file:$log" -kernel "$kernel" -initrd "$WORK/initrd" \
    -append "console=ttyS0 loglevel=3 panic=-1 mitigations=off no5lvl nowatchdog tsc=reliable no_timer_check" \
    </dev/null >"$WORK/qemu.log" 2>&1 || cat "$WORK/qemu.log"
tr -d '\r' <"$log" >"$log.text" && mv "$log.text" "$log"

# A line a program, then the whole output of those that failed.
awk '
    function flush() {
        if (name == "") return
        if (wrong && !failed) failed = 1
        if (!ended) { failed = 1; note = ", not to its end" }
        if (skipped <= passed) passed -= skipped
        printf "%-60s %d passed, %d failed, %d skipped%s\n", name, passed, failed, skipped, note
        if (failed) bad = bad part
        all_passed += passed; all_failed += failed; all_skipped += skipped
    }
    /^ +Running / { flush(); name = $2 ", " $3 ": " $4; part = note = ""; passed = failed = skipped = wrong = 0; ended = 0 }
    name != "" { part = part $0 "\n" }
    /^test result:/ { passed += $4; failed += $6; ended = 1 }
    /^SKIP:/ { skipped++ }
    /^error: .* (ended with|left control groups)/ { wrong = 1; note = ", " $5 " " $6 " " $7; if (/ended with/) ended = 1 }
    / end of tests$/ { flush(); name = ""; whole = $0 }
    END {
        flush()
        if (bad != "") printf "---- output of what failed ----\n%s----\n", bad
        if (whole == "") { print "the machine did not come to the end"; all_failed++ } else print whole
        printf "%d passed, %d failed, %d skipped\n", all_passed, all_failed, all_skipped
    }' "$log" >"$WORK/summary"
if ! grep -q ' end of tests$' "$log"; then
    tail -n 40 "$log"
fi
sed '$d' "$WORK/summary"
grep '^SKIP:' "$log" | cut -c1-150 | sort | uniq -c | sort -rn || true
echo "console: $log"
tail -n 1 "$WORK/summary"
tail -n 1 "$WORK/summary" | grep -q ', 0 failed,'
