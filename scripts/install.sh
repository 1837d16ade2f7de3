#!/bin/sh
# Installs what `make build` made: the orbit command, the C library and the one for sections (rmk.h) with headers and pkg-config files,
# the source of the pass for clang that marks sections, manual pages and shell completions of all commands, licences.
#
#   PREFIX=/usr/local DESTDIR= scripts/install.sh
#
# Prints each file it writes. Builds first what is not up to date.
set -eu
cd "$(dirname "$0")/.."
PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
case $PREFIX in
/*) ;;
*)
    echo "install.sh: PREFIX must be an absolute path: $PREFIX" >&2
    exit 2
    ;;
esac
built=${CARGO_TARGET_DIR:-target}/release
scripts/packages.sh build
if [ "$(id -u)" = 0 ] && [ "${SUDO_USER:-root}" != root ]; then
    # The toolchain is that user's, and so is what it builds.
    sudo -u "$SUDO_USER" -H ${CARGO_TARGET_DIR:+CARGO_TARGET_DIR="$CARGO_TARGET_DIR"} sh -lc 'cargo build --release --workspace'
else
    cargo build --release --workspace
fi

# $1 mode, $2 directory below PREFIX, then files.
put() {
    mode=$1 to=$DESTDIR$PREFIX/$2
    shift 2
    for file in "$@"; do
        [ -f "$file" ] || continue
        mkdir -p "$to"
        install -m "$mode" "$file" "$to/"
        echo "$to/${file##*/}"
    done
}

put 755 bin "$built/orbit" "$built/orbit-bench"
# The file has the whole version in its name; programs find it by its soname, compilers by the short name.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
lib=$DESTDIR$PREFIX/lib
mkdir -p "$lib"
for name in orbit rmk_section; do
    # Some targets have static libraries only.
    if [ -f "$built/lib$name.so" ]; then
        install -m 755 "$built/lib$name.so" "$lib/lib$name.so.$version"
        # Debug information is three quarters of it; the names of functions stay, for call stacks.
        if command -v strip >/dev/null; then strip --strip-debug "$lib/lib$name.so.$version"; fi
        ln -sf "lib$name.so.$version" "$lib/lib$name.so.0"
        ln -sf "lib$name.so.0" "$lib/lib$name.so"
        printf '%s\n' "$lib/lib$name.so.$version" "$lib/lib$name.so.0" "$lib/lib$name.so"
    fi
    put 644 lib "$built/lib$name.a"
done
put 644 include crates/library/orbit-c/include/*.h crates/library/orbit-c/include/*.hpp crates/watch/section/include/*.h*
# The pass for clang fits the LLVM that it is built against: its source, and a Makefile.
put 644 share/orbit/clang crates/watch/section/clang/*.cpp crates/watch/section/clang/*.h crates/watch/section/clang/Makefile
put 644 share/man/man3 crates/library/orbit-c/man/orbit.3
# Manual pages and completions are made from the commands' own arguments.
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$built/orbit" generate man "$made/man"
"$built/orbit" generate completions "$made/completions"
put 644 share/man/man1 "$made"/man/*.1
put 644 share/bash-completion/completions "$made/completions/bash/orbit"
put 644 share/zsh/site-functions "$made/completions/zsh/_orbit"
put 644 share/fish/vendor_completions.d "$made/completions/fish/orbit.fish"
put 644 share/doc/orbit LICENSE-MIT LICENSE-APACHE CHANGELOG.md README.md

mkdir -p "$lib/pkgconfig"
for from in crates/library/orbit-c/orbit.pc.in crates/watch/section/c/rmk_section.pc.in; do
    to=$lib/pkgconfig/$(basename "$from" .in)
    sed "s|@PREFIX@|$PREFIX|g; s|@VERSION@|$version|g" "$from" >"$to"
    chmod 644 "$to"
    echo "$to"
done

if [ -z "$DESTDIR" ] && ! pkg-config --exists orbit 2>/dev/null; then
    echo "pkg-config finds the library with PKG_CONFIG_PATH=$lib/pkgconfig" >&2
fi

# Programs find the library by the loader's cache, if it searches there. A package (DESTDIR) has its own step for that.
cache=$(command -v ldconfig || echo /sbin/ldconfig)
if [ -z "$DESTDIR" ] && [ -x "$cache" ]; then
    if ! "$cache" -vNX 2>/dev/null | grep -qE "^$lib(:| )"; then
        echo "programs find the library with LD_LIBRARY_PATH=$lib, or linked with -Wl,-rpath,$lib" >&2
    elif [ "$(id -u)" = 0 ]; then
        "$cache"
    else
        echo "as root run ldconfig, so that programs find the library" >&2
    fi
fi
