#!/bin/sh
# What both trials of scripts/static.sh share; they read it. Mounts are of a namespace of their own, which ends with the trial.
set -u
: "${root:?}" "${scratch:?}" "${orbit:?}"
mount --make-rprivate /
mount -t proc proc "$root/proc"
chroot=$(command -v chroot)
wrong=0

# Runs a command in the root, which has none of this machine's variables.
in_root() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C timeout 60 "$chroot" "$root" "$@"; }

# $1 what is tried, $2 the wanted status, $3 what the output has to have, then the words of the command in the root.
try() {
    what=$1 wanted=$2 has=$3
    shift 3
    status=0
    in_root "$@" >"$scratch/said" 2>&1 </dev/null || status=$?
    result "$what"
}

# Judges $status and $scratch/said by $wanted and $has.
result() {
    if [ "$status" = "$wanted" ] && { [ -z "$has" ] || grep -q -e "$has" "$scratch/said"; }; then
        echo "  as it should be: $1"
    else
        echo "  WRONG: $1: status $status for $wanted, and the output should have: $has"
        sed 's/^/    /' "$scratch/said" | head -40
        # shellcheck disable=SC2034  # the trials read it
        wrong=1
    fi
}
