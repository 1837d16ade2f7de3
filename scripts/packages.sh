#!/bin/sh
# Sees to it that the system packages of the named groups are there.
#
#   scripts/packages.sh GROUP...        groups: build test full demo lint fuzz fresh lab bench ports
#
# Does nothing, quickly and without network, if all are there. Else names what is missing and installs it with apt-get, as
# root or through sudo. No daemon that comes with a package is started or left enabled. Debian 12 and 13 were tried.
# Of the groups ports and full (asked for alone), what the release does not have in that version is left out, and said: the tests that need it skip themselves.
set -eu

# package=proof: a command, or a path (may have wildcards) that shows that it is there, wherever it came from.
group() {
    case $1 in
    build) echo "gcc=gcc g++=g++ libc6-dev=/usr/include/stdio.h make=make pkg-config=pkg-config clang=clang
        llvm=llvm-strip|/usr/bin/llvm-strip-*|/usr/lib/llvm-*/bin/llvm-strip libbpf-dev=/usr/include/bpf/bpf_helpers.h" ;;
    test) echo "redis-server=redis-server redis-tools=redis-cli nginx=nginx|/usr/sbin/nginx nginx-dev=/usr/share/nginx/src/configure valgrind=valgrind
        python3=python3 stress-ng=stress-ng iproute2=ip|/sbin/ip|/usr/sbin/ip lld=wasm-ld|/usr/bin/wasm-ld-*
        musl-tools=musl-gcc golang-go=go strace=strace sqlite3=sqlite3 default-jdk-headless=javac
        apache2=/usr/sbin/apache2 apache2-dev=/usr/bin/apxs2 haproxy=/usr/sbin/haproxy beanstalkd=/usr/bin/beanstalkd
        gunicorn=/usr/bin/gunicorn" ;;
    full) echo "libpython3.11-testsuite=/usr/lib/python3.11/test/test_asyncio/test_events.py" ;;
    demo) echo "redis-server=redis-server redis-tools=redis-cli" ;;
    bench) echo "redis-server=redis-server redis-tools=redis-cli nginx=nginx|/usr/sbin/nginx" ;;
    lint) echo "shellcheck=shellcheck python3=python3" ;;
    fuzz) echo "clang=clang" ;;
    ports) echo "postgresql-15=/usr/lib/postgresql/15/bin/pgbench
        postgresql-server-dev-15=/usr/include/postgresql/15/server/postgres.h
        libleveldb-dev=/usr/include/leveldb/db.h libsnappy-dev=/usr/include/snappy-c.h
        apache2=/usr/sbin/apache2 apache2-dev=/usr/bin/apxs2 apache2-utils=/usr/bin/ab curl=curl sysbench=sysbench
        mariadb-server=/usr/sbin/mariadbd mariadb-client=/usr/bin/mariadb
        libmariadb-dev=/usr/lib/*/libmysqlservices.a libmariadbd-dev=/usr/include/mariadb/server/mysql/plugin.h
        nginx=nginx|/usr/sbin/nginx nginx-dev=/usr/share/nginx/src/conf_flags
        varnish=varnishd|/usr/sbin/varnishd libvarnishapi-dev=/usr/include/varnish/cache/cache.h
        libsqlite3-dev=/usr/include/sqlite3.h libjemalloc2=/usr/lib/*/libjemalloc.so.2" ;;
    fresh) echo "debootstrap=debootstrap" ;;
    lab) echo "qemu-system-x86=qemu-system-x86_64 busybox-static=busybox cpio=cpio zstd=zstd" ;;
    *)
        echo "packages.sh: no group $1: build test full demo lint fuzz fresh lab bench ports" >&2
        exit 2
        ;;
    esac
}

there() {
    proofs=$1
    while [ -n "$proofs" ]; do
        proof=${proofs%%|*}
        case $proofs in *"|"*) proofs=${proofs#*|} ;; *) proofs= ;; esac
        case $proof in
        /*)
            for path in $proof; do
                [ -e "$path" ] && return 0
            done
            ;;
        *) command -v "$proof" >/dev/null 2>&1 && return 0 ;;
        esac
    done
    return 1
}

missing() {
    for g in "$@"; do
        # Wildcards belong to the proofs: not to be expanded here.
        set -f
        entries=$(group "$g")
        for entry in $entries; do
            set +f
            there "${entry#*=}" || printf '%s ' "${entry%%=*}"
            set -f
        done
        set +f
    done
}

install_as_root() {
    # Ubuntu's needrestart would restart services of the machine: not for our sake.
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
    policy=/usr/sbin/policy-rc.d
    made_policy=
    if [ ! -e $policy ]; then
        # 101: "may not be started", which invoke-rc.d and systemd's helpers ask for.
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
        made_policy=$policy
        trap 'rm -f "$made_policy"' EXIT
        trap 'exit 130' INT TERM HUP
    fi
    # A new machine has no lists of packages yet.
    apt-cache show make >/dev/null 2>&1 || apt-get -qq -o DPkg::Lock::Timeout=300 update
    for package in "$@"; do
        if [ "$ports" = yes ] && ! apt-cache show "$package" >/dev/null 2>&1; then
            echo "packages.sh: not in this release: $package" >&2
        else
            set -- "$@" "$package"
        fi
        shift
    done
    [ $# -gt 0 ] || return 0
    if ! apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" >/dev/null 2>&1; then
        apt-get -qq -o DPkg::Lock::Timeout=300 update
        apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" >/dev/null
    fi
    # Nor at the next boot: only the programs are wanted.
    for unit in nginx redis-server postgresql apache2 mariadb; do
        for package in "$@"; do
            if { [ "$package" = "$unit" ] || [ "${package%-[0-9]*}" = "$unit" ] || [ "${package%-server}" = "$unit" ]; } && command -v systemctl >/dev/null 2>&1; then
                systemctl --quiet disable "$unit" >/dev/null 2>&1 || true
            fi
        done
    done
}

# Whether packages that the release lacks are left out.
ports=no
if [ "${1:-}" = --install ]; then
    ports=$2
    shift 2
    install_as_root "$@"
    exit 0
fi
[ $# -gt 0 ] || { echo "usage: scripts/packages.sh GROUP..." >&2; exit 2; }
for g in "$@"; do
    group "$g" >/dev/null || exit 2
done

case "$*" in ports | full) ports=yes ;; esac
need=$(missing "$@" | tr ' ' '\n' | sort -u | tr '\n' ' ')
need=$(echo "$need" | sed 's/^ *//; s/ *$//')
[ -n "$need" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "packages.sh: missing: $need. There is no apt-get here: install their like and try again." >&2
    exit 1
fi
echo "packages.sh: installing: $need" >&2
# shellcheck disable=SC2086  # a list of package names
if [ "$(id -u)" = 0 ]; then
    install_as_root $need
elif command -v sudo >/dev/null 2>&1; then
    sudo "$0" --install $ports $need
else
    echo "packages.sh: neither root nor sudo: as root run: apt-get install $need" >&2
    exit 1
fi
still=$(missing "$@")
if [ -n "$still" ] && [ "$ports" = no ]; then
    echo "packages.sh: installed, but still not found: $still" >&2
    exit 1
fi
