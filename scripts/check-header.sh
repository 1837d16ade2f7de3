#!/bin/sh
# Holds the C header against the library: every exported symbol is declared, every declared one exported; the headers
# compile without warnings as C11 and C++17.
#
#   scripts/check-header.sh             builds the library if it is not there; part of `make lint`
set -eu
cd "$(dirname "$0")/.."
include=crates/library/orbit-c/include
library=${CARGO_TARGET_DIR:-target}/release/liborbit.so
if [ ! -e "$library" ]; then
    cargo build --quiet --release -p orbit-c
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What a C program sees declared, comments and static functions left out.
printf '#include "orbit.h"\n' | "${CC:-cc}" -I"$include" -E -P -x c - | tr '\n' ' ' | sed 's/;/;\n/g; s/}/}\n/g' |
    grep -v 'static inline' | grep -o '[a-z_]*orbit[a-z_]* *(' | tr -d ' (' | sort -u >"$work/declared"
nm -D --defined-only "$library" | awk '$2 == "T" {print $3}' | sort -u >"$work/exported"
bad=0
for name in $(comm -13 "$work/declared" "$work/exported"); do
    echo "exported by $library, not declared in orbit.h: $name"
    bad=1
done
for name in $(comm -23 "$work/declared" "$work/exported"); do
    echo "declared in orbit.h, not exported by $library: $name"
    bad=1
done

printf '#include "orbit.h"\nint main(void) { return orbit_is_orbit(); }\n' >"$work/alone.c"
"${CC:-cc}" -std=c11 -pedantic -Wall -Wextra -Werror -I"$include" -c "$work/alone.c" -o "$work/alone.o" || bad=1
printf '#include "orbit.hpp"\nint main() { return orbit_is_orbit(); }\n' >"$work/alone.cpp"
"${CXX:-c++}" -std=c++17 -pedantic -Wall -Wextra -Werror -I"$include" -c "$work/alone.cpp" -o "$work/alone.o" || bad=1
printf '#include "orbit_paper.h"\nint main(void) { return orbit_is_orbit(); }\n' >"$work/alone.c"
"${CC:-cc}" -std=gnu11 -Wall -Wextra -Werror -I"$include" -c "$work/alone.c" -o "$work/alone.o" || bad=1
"${CXX:-c++}" -x c++ -std=c++11 -Wall -Wextra -Werror -I"$include" -c "$work/alone.c" -o "$work/alone.o" || bad=1
exit $bad
