# shellcheck shell=sh disable=SC2034  # others use these
# How the acts of the demo speak; read with `.` from the repository's top. Colour on terminals only.
bold='' green='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$(printf '\033[1m') green=$(printf '\033[32m') red=$(printf '\033[31m') plain=$(printf '\033[0m')
fi
say() { printf '%s%s%s\n' "$bold" "$*" "$plain"; }
# Builds all that the acts use, once: one command, so that no act changes what another has built.
release=
build() {
    cargo build --quiet --release -p orbit-cli -p orbit-redis
    release=$(cd "${CARGO_TARGET_DIR:-target}/release" && pwd)
}
# Ends an act: what it has shown, in three lines ($2 to $4), and PASS; or FAIL with the reasons in $1. Exits with a matching status.
verdict() {
    [ -z "$1" ] || { printf '%sFAIL%s%s\n' "$red" "$plain" "$1"; exit 1; }
    say "shown"
    printf '    - %s\n' "$2" "$3" "$4"
    printf '%sPASS%s\n' "$green" "$plain"
    exit 0
}
