#!/bin/sh
# Everything that can be checked without running the programs. Stops at nothing, fails if anything did.
#
#   scripts/lint.sh
#
# Formatting; clippy (which knows what the promised Rust lacks, and which crates make no raw system calls) and rustdoc with warnings as
# errors; floors, that is which crate may use which; columns, words and sizes of sources; licences and duplicates of dependencies; links of documents;
# the C header against its source (if there is a check for it); all C and C++ examples, and the programs in the tutorials, with -Wall -Wextra -Werror; shell scripts with shellcheck.
set -u
cd "$(dirname "$0")/.." || exit 1
scripts/packages.sh build lint || exit 1

bad=0
step() {
    name=$1
    shift
    printf '%-34s ' "$name"
    if output=$("$@" 2>&1); then
        echo ok
    else
        bad=1
        echo FAILED
        echo "$output" | tail -n 200
        echo "---- to run it again: $*"
    fi
}

compile_c() {
    out=$(mktemp -d) || return 1
    worst=0
    shown=$(scripts/shown.py "$out") || return 1
    for source in $(find examples crates tools apps -path '*/target/*' -prune -o -name '*.c' -print -o -name '*.cpp' -print | sort) $shown; do
        # BPF programs have another compiler, and their crates' builds check them.
        # Kernel modules have the kernel's build; programs that hang or recurse for a test are meant to.
        # The program's sides of keep and of the analyser are compiled by their build scripts, with warnings as errors.
        # Extensions of servers need the server's headers: their Makefiles have warnings as errors.
        # The pass for clang needs LLVM's headers: a test compiles it, by its Makefile.
        # Java's needs the JDK's header: a test compiles it, with warnings as errors.
        case $source in examples/java/* | crates/watch/section/clang/* | apps/*/extension/* | *.bpf.c | */bpf/* | crates/base/inspect/tests/* | crates/serve/services/tests/* | crates/keep/keep/side/* | crates/keep/keep/tests/* | tools/analyse/side/* | tools/lab/*) continue ;; esac
        case $source in *.cpp) compiler="${CXX:-g++} -std=c++17" ;; *) compiler="${CC:-gcc} -std=gnu11" ;; esac
        # shellcheck disable=SC2086  # the compiler with its flags
        $compiler -Wall -Wextra -Werror -O2 -Icrates/library/orbit-c/include -Icrates/watch/section/include -Icrates/serve/services/include -Icrates/hijack/hijack/include -c "$source" -o "$out/object.o" || {
            echo "$source: does not compile without warnings"
            worst=1
        }
    done
    rm -rf "$out"
    return "$worst"
}

scripts_of_project() { find scripts .ci examples apps tools crates -path '*/target/*' -prune -o -type f \( -name '*.sh' -o -path '.ci/*' \) -print 2>/dev/null; }

step "floors" python3 scripts/floors.py
step "columns, words, sizes" python3 scripts/text.py
step "links and contents of the book" python3 scripts/links.py
step "dependencies" python3 scripts/dependencies.py
step "rustfmt" cargo fmt --all --check
# Before a release: `cargo publish --dry-run` of the same, which compiles them and asks the registry.
step "packages for the registry" cargo package --quiet --no-verify --allow-dirty -p orbit-linux -p orbit-tasks -p orbit-derive
step "rustfmt of builds of their own" cargo fmt --manifest-path crates/serve/services-wasmtime/Cargo.toml --check
# In release mode, as tests are built: build scripts and macros are compiled once for both.
step "clippy and raw system calls" cargo clippy --quiet --release --workspace --all-targets -- -D warnings
# Its compiler of wasm takes minutes to check.
if [ -n "${ORBIT_TEST_FULL:-}" ]; then
    step "clippy of builds of their own" \
        cargo clippy --quiet --release --locked --manifest-path crates/serve/services-wasmtime/Cargo.toml --all-targets -- -D warnings
fi
step "rustdoc" env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --release --workspace --no-deps
if [ -x scripts/check-header.sh ]; then
    step "C header" scripts/check-header.sh
fi
step "C and C++ examples" compile_c
# shellcheck disable=SC2046  # file names of the project have no blanks
step "shellcheck" shellcheck --severity=warning $(scripts_of_project)
exit $bad
