# shellcheck shell=sh disable=SC2034  # others use these
# How the acts of the demo speak; read with `.` from the repository's top. Colour on terminals only.
bold='' green='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$(printf '\033[1m') green=$(printf '\033[32m') red=$(printf '\033[31m') plain=$(printf '\033[0m')
fi
say() { printf '%s%s%s\n' "$bold" "$*" "$plain"; }
# Prints PASS, or FAIL with the reasons in $1, and exits with a matching status.
verdict() {
    [ -z "$1" ] || { printf '%sFAIL%s%s\n' "$red" "$plain" "$1"; exit 1; }
    printf '%sPASS%s\n' "$green" "$plain"
    exit 0
}
