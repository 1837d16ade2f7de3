#!/bin/sh
# The matrix of other people's programs on another kernel: a virtual machine whose root is this machine's, read-only, with what it
# writes in memory. Emulated, so some ten times slower than here: name some programs for a first look.
#
#   scripts/outside-kernel.sh [PROGRAM...]      default: the short form; by default Debian 12's own 6.1
#   ORBIT_VM_IMAGE=linux-image-6.12.x-amd64 scripts/outside-kernel.sh redis      a package that apt knows
#   ORBIT_VM_LIMIT=7200                         seconds until the machine is turned off
#
# The kernel is unpacked below target/outside-kernel, never installed. Prints the cells as they come; they are left in
# target/outside-kernel/VERSION.jsonl. The last line is that of outside/run.py.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh build lab
here=$(pwd)
work=$here/target/outside-kernel
orbit=${ORBIT:-$here/target/release/orbit}
mkdir -p "$work"

image=${ORBIT_VM_IMAGE:-$(apt-cache search --names-only '^linux-image-6\.1\.[0-9.-]*-amd64$' | cut -d' ' -f1 | sort -V | tail -n 1)}
[ -n "$image" ] || { echo "outside-kernel.sh: apt knows no Debian 6.1 kernel: name a package by ORBIT_VM_IMAGE" >&2; exit 1; }
if [ ! -d "$work/$image" ]; then
    echo "downloading $image (not installing it)"
    (cd "$work" && apt-get -qq download "$image" && dpkg-deb -x "$image"_*.deb "$image" && rm "$image"_*.deb)
fi
kernel=$(find "$work/$image" -name 'vmlinuz-*')
version=${kernel##*/vmlinuz-}

root=$work/initial
rm -rf "$root"
for folder in bin lib proc sys dev host top root; do mkdir -p "$root/$folder"; done
cp "$(command -v busybox)" "$root/bin/"
# In the order in which each needs those before it.
nth=10
for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci netfs fscache 9pnet 9pnet_virtio 9p overlay; do
    nth=$((nth + 1))
    found=$(find "$work/$image" -name "$module.ko*" | head -n 1)
    case $found in
    '') ;; # built in, or not there yet
    *.xz) xz -dc "$found" >"$root/lib/$nth.ko" ;;
    *) cp "$found" "$root/lib/$nth.ko" ;;
    esac
done
words=$*
[ -n "$words" ] || words=--short
cat >"$root/run" <<END
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
cd $here
python3 outside/run.py $words --orbit $orbit --json /tmp/cells.jsonl
echo "CELLS"
cat /tmp/cells.jsonl
echo "END"
END
cat >"$root/init" <<'END'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in /lib/*.ko; do $b insmod "$module"; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /host
$b mount -t tmpfs -o size=70% tmpfs /top
$b mkdir /top/upper /top/work
$b mount -t overlay -o lowerdir=/host,upperdir=/top/upper,workdir=/top/work overlay /root
for folder in proc sys dev; do $b mount --move /$folder /root/$folder; done
for folder in tmp run dev/shm; do $b mkdir -p /root/$folder; $b mount -t tmpfs tmpfs /root/$folder; done
$b mkdir -p /root/dev/pts
$b mount -t devpts devpts /root/dev/pts
$b mount -t cgroup2 cgroup /root/sys/fs/cgroup
$b ifconfig lo 127.0.0.1 up
$b cp /run /root/tmp/.orbit-run
$b chroot /root /bin/sh /tmp/.orbit-run
$b sync
echo o >/root/proc/sysrq-trigger
$b sleep 60
END
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initial.gz"

log=$work/console.log
echo "Linux $version:"
timeout "${ORBIT_VM_LIMIT:-7200}" qemu-system-x86_64 -machine q35 -cpu max -smp 2 -m 4096 -nographic -no-reboot -kernel "$kernel" \
    -initrd "$work/initial.gz" -append "console=ttyS0 quiet panic=-1" \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap </dev/null |
    sed -u 's/\r$//' | tee "$log" | grep --line-buffered -E '^\[[0-9]+/|^to run it again|^SKIP|passed, [0-9]+ failed'
sed -n '/^CELLS$/,/^END$/{/^{/p}' "$log" >"$work/$version.jsonl"
last=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
case $last in *" 0 failed"*) exit 0 ;; esac
echo "outside-kernel.sh: see $log" >&2
exit 1
