#!/bin/sh
# The loop of a developer: what fails most often, in about three minutes. `make test` is the proof.
#
#   scripts/check.sh
#
# Formatting and floors, then the unit tests of all crates and one test of each kind: calls, snapshots, crashes, updates,
# limits, the C face, waits and stacks of another process, pins, hangs, the command. Stops at the first failure.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh build
export RUST_BACKTRACE="${RUST_BACKTRACE:-1}"

cargo fmt --all --check
scripts/floors.py

# One of each kind, a few seconds each. A name that is gone is an error of cargo's.
set --
for test in \
    calls area_alloc_model crashes updates_of_synchronous_calls limits_cpu shutdown \
    header_matches_library delegates marks \
    waits_reported stops_are_short is_left_as_it_was \
    pins_load_unload core_api_of_modules pin_sig constants_are_not_touched \
    recordings_judged rules_act face; do
    set -- "$@" --test "$test"
done
cargo test --release --workspace --lib "$@"
