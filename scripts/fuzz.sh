#!/bin/sh
# Fuzzes what reads bytes of an orbit that is not trusted: each target in fuzz/ for its share of the time.
#
#   scripts/fuzz.sh [SECONDS]           default 60, in all
#
# libFuzzer with coverage on stable Rust: no nightly compiler, no cargo-fuzz. Starts from the corpus in fuzz/corpus, if
# there is one, and adds nothing to it. An input that fails is kept in target/fuzz-failures, with the command that
# replays it.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
scripts/packages.sh build

TARGET=${CARGO_TARGET_DIR:-target}
host=$(rustc -vV | sed -n 's/^host: //p')
targets=$(sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml)
share=$((seconds / $(echo "$targets" | wc -w)))
[ "$share" -gt 0 ] || share=1

# Optimised, with the library's debug assertions and overflow checks, and coverage for the fuzzer to follow.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks"
cargo build --quiet --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$TARGET/fuzz"

failures=$TARGET/fuzz-failures
mkdir -p "$failures"
passed=0 failed=0
for target in $targets; do
    program=$TARGET/fuzz/$host/release/$target
    corpus=$(mktemp -d)
    [ ! -d "fuzz/corpus/$target" ] || cp fuzz/corpus/"$target"/* "$corpus"/
    if output=$("$program" -max_total_time="$share" -timeout=20 -report_slow_units=20 -rss_limit_mb=1024 \
        -artifact_prefix="$failures/$target-" "$corpus" 2>&1); then
        passed=$((passed + 1))
        # "cov" are edges of the program reached, "ft" features: edges, how often, and what was compared.
        echo "$target: $(echo "$output" | sed -n 's/^#\([0-9]*\)[[:space:]]*DONE *\(cov: [0-9]* ft: [0-9]*\).*/\1 runs, \2/p')"
    else
        failed=$((failed + 1))
        echo "$output" | tail -n 60
        echo "error: fuzz target $target failed; to replay it: $program INPUT, with the input named above"
    fi
    rm -rf "$corpus"
done
# The form of a test result, which scripts/test.sh adds up.
echo "test result: $([ $failed = 0 ] && echo ok || echo FAILED). $passed passed; $failed failed;"
[ "$failed" = 0 ]
