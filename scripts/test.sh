#!/bin/sh
# Runs every test of the project and says in its last line: N passed, N failed, N skipped.
#
#   scripts/test.sh                     all packages; ORBIT_TEST_ONLY=REGEX picks some by name
#   ORBIT_TEST_FULL=1 scripts/test.sh   the same with whole campaigns (the tests read it) and longer fuzzing
#
# All tests are built at once. Then:
#   - each package's tests, those of the ports into servers two packages at a time;
#   - the examples in documents;
#   - other people's programs under each command, in the short form of `make outside` (name: outside), and the tests of that;
#   - those of the library again "contained", as an ordinary user under a model of Docker's seccomp profile;
#   - in the full run the crate with a build of its own, fuzzing led by coverage, and demo and tests in minimal roots of Debian 12 and 13.
# The output of each suite is kept in target/test-logs. Of a suite that fails the output is shown, and the command that runs it
# again. A skip is a line "SKIP: needs ...".
set -u
cd "$(dirname "$0")/.." || exit 1

# Three times what a suite takes on the slowest machines; one that hangs counts as failed.
LIMIT=2400
[ -z "${ORBIT_TEST_FULL:-}" ] || LIMIT=7200
LIMIT=${ORBIT_TEST_LIMIT:-$LIMIT}
TARGET=${CARGO_TARGET_DIR:-target}
LOGS=$TARGET/test-logs
CONTAINED="orbit-tasks orbit-c"
export RUST_BACKTRACE="${RUST_BACKTRACE:-1}"

scripts/packages.sh build test || exit 1
# For the laboratory's short form, and for ports into servers: their tests skip themselves where these are not available.
scripts/packages.sh lab || true
scripts/packages.sh ports || true
[ -z "${ORBIT_TEST_FULL:-}" ] || scripts/packages.sh full || true
mkdir -p "$LOGS" || exit 1
LOGS=$(cd "$LOGS" && pwd)
# Absolute: test programs run in their packages' directories.
TARGET=$(dirname "$LOGS")
rm -f "$LOGS"/*.log "$LOGS"/*.ended "$LOGS"/*.programs
: >"$LOGS/reasons"

passed=0 failed=0 skipped=0
failures=

# Adds a log's numbers to the totals. $1 log, $2 exit status, $3 name, $4 the command that runs it again, $5 seconds.
account() {
    ok=$(sed -n 's/^test result:.* \([0-9][0-9]*\) passed;.*/\1/p' "$1" | awk '{n += $1} END {print n + 0}')
    bad=$(sed -n 's/^test result:.* \([0-9][0-9]*\) failed;.*/\1/p' "$1" | awk '{n += $1} END {print n + 0}')
    skip=$(grep -c '^SKIP:' "$1")
    # A test file that crashes prints no result.
    crashed=$(grep -c -e '(signal: [0-9]' -e '^error: .* ended with 1[23][0-9]$' "$1")
    bad=$((bad + crashed))
    # A test that skips itself ends well for the test harness: it is not counted as passed.
    [ "$skip" -le "$ok" ] && ok=$((ok - skip))
    # A new machine has counted its tests itself.
    total=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/ok=\1 bad=\2 skip=\3/p' "$1" | tail -1)
    [ -z "$total" ] || eval "$total"
    note=
    case $2 in
    0) ;;
    124 | 137) [ "$crashed" -gt 0 ] || bad=$((bad + 1)); note=", stopped after $LIMIT s" ;;
    *) [ "$bad" -gt 0 ] || bad=1 ;;
    esac
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    printf '%-34s %s passed, %s failed, %s skipped (%s s%s)\n' "$3" "$ok" "$bad" "$skip" "$5" "$note"
    [ "$2" = 0 ] && return
    failures="$failures$3: $4
"
    reasons "$1" >>"$LOGS/reasons"
    echo "---- output of what failed in $3 ----"
    failing_parts "$1"
    echo "---- to run it again ----"
    # cargo names the failing test files (in backticks: -p PACKAGE --test FILE), the contained run its commands.
    again=$(sed -n 's/^[^`]*`\(-p [^`]*\)`.*/cargo test --release \1 -- --show-output/p; s/^to run it again: //p' "$1")
    echo "${again:-$4}" | sort -u
    echo "----"
}

# Of a log of cargo test: the parts of test files that failed or ended without a result, without what the good tests printed.
# Anything else: its end.
failing_parts() {
    parts=$(awk '
        function flush() { if (part != "" && (bad || !result)) printf "%s", part; part = ""; bad = 0; result = 0 }
        /^ +Running |^ +Doc-tests / { flush(); inside = 1; good = 0 }
        /^successes:$/ { good = 1 }
        /^failures:$|^test result: / { good = 0 }
        /^test result: ok/ { result = 1 }
        /^test result: FAILED|[(]signal: / { bad = 1 }
        inside && !good { part = part $0 "\n" }
        END { flush() }' "$1")
    if [ -n "$parts" ]; then
        echo "$parts" | tail -n 400
    else
        tail -n 400 "$1"
    fi
}

# Of a log of cargo test: for each test that failed its name and what it said when it failed, without the stack.
reasons() {
    awk '
        /^successes:$/ { good = 1 }
        /^failures:$/ { good = 0; test = ""; said = 0 }
        /^---- .* stdout ----$/ { test = $2; said = 0 }
        good { next }
        /^thread .* panicked at / { said = 12; if (test != "") print "  " test; test = "" }
        /^stack backtrace:|^note: run with/ { said = 0 }
        said && NF { print "    " substr($0, 1, 400); said-- }' "$1"
}

# $1 name, $2 log, $3 the command that runs it again, then the command itself.
suite() {
    name=$1 log=$2 again=$3
    shift 3
    begun=$(date +%s)
    timeout --kill-after=10 "$LIMIT" "$@" >"$log" 2>&1 </dev/null
    status=$?
    account "$log" $status "$name" "$again" $(($(date +%s) - begun))
}

packages=$(cargo tree --workspace --depth 0 --prefix none -e normal 2>"$LOGS/packages.log" | awk 'NF {print $1}' | sort -u)
if [ -z "$packages" ]; then
    cat "$LOGS/packages.log"
    exit 1
fi
wanted() { echo "$1" | grep -Eq "${ORBIT_TEST_ONLY:-.}"; }

# One build: all crates share features, and so what is compiled. Package by package, cargo would compile most of it anew.
selected="--workspace"
if [ -n "${ORBIT_TEST_ONLY:-}" ]; then
    selected=
    for package in $packages; do
        ! wanted "$package" || selected="$selected -p $package"
    done
fi
programs=$LOGS/programs
: >"$programs"
if [ -n "$selected" ]; then
    echo "building all tests"
    begun=$(date +%s)
    # shellcheck disable=SC2086  # options
    if ! cargo test --release --no-run $selected --message-format=json >"$LOGS/build.json" 2>"$LOGS/build.log"; then
        scripts/test-programs.py <"$LOGS/build.json" >/dev/null 2>>"$LOGS/build.log"
        account "$LOGS/build.log" 101 "build" "cargo test --release --no-run $selected" $(($(date +%s) - begun))
        echo "$passed passed, $failed failed, $skipped skipped"
        exit 1
    fi
    scripts/test-programs.py <"$LOGS/build.json" >"$programs" || exit 1
    echo "built in $(($(date +%s) - begun)) s"
fi
# As cargo has it for what it runs; the tests of macros use the compiler's own libraries.
LD_LIBRARY_PATH="$TARGET/release/deps:$TARGET/release:$(rustc --print target-libdir)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_LIBRARY_PATH
tab=$(printf '\t')

# The test programs of package $1, one after another, printed as cargo does. Returns 0, 1 if one failed, 124 if one took too long.
run_package() {
    worst=0
    # Its tests watch programs that sleep, for seconds each: more at once than CPUs.
    case $1 in orbit-ahd) threads=${RUST_TEST_THREADS:-6} ;; *) threads=${RUST_TEST_THREADS:-} ;; esac
    grep "^${1}${tab}" "$programs" >"$LOGS/$1.programs"
    while IFS=$tab read -r _ directory called alone program; do
        echo "     Running $called ($program)"
        (cd "$directory" && CARGO_MANIFEST_DIR=$directory exec env ${threads:+RUST_TEST_THREADS="$threads"} timeout --kill-after=10 "$LIMIT" "$program" --show-output) </dev/null
        status=$?
        [ $status != 0 ] || continue
        echo "error: $called ended with $status"
        echo "to run it again: cargo test --release $alone -- --show-output"
        case $status in 124 | 137) worst=124 ;; *) [ $worst = 124 ] || worst=1 ;; esac
    done <"$LOGS/$1.programs"
    return $worst
}

# Runs packages one after another; status and seconds of each go to a file beside its log.
run_packages() {
    for package in "$@"; do
        begun=$(date +%s)
        run_package "$package" >"$LOGS/$package.log" 2>&1
        echo "$? $(($(date +%s) - begun))" >"$LOGS/$package.ended"
    done
}

account_package() {
    read -r status seconds <"$LOGS/$1.ended"
    account "$LOGS/$1.log" "$status" "$1" "ORBIT_TEST_ONLY='^$1\$' scripts/test.sh" "$seconds"
}

# Ports into servers wait for processes most of the time, and none of their tests measures time closely: two suites at once.
# All others run alone.
first='' second=''
for package in $packages; do
    wanted "$package" || continue
    if grep -q "^${package}${tab}[^${tab}]*/apps/" "$programs"; then
        # The shorter line gets the next one, by number.
        if [ "$(echo "$first" | wc -w)" -le "$(echo "$second" | wc -w)" ]; then
            first="$first $package"
        else
            second="$second $package"
        fi
        continue
    fi
    run_packages "$package"
    account_package "$package"
done
if [ -n "$first" ]; then
    # shellcheck disable=SC2086  # lists of names
    {
        run_packages $second &
        run_packages $first
        wait
    }
    for package in $first $second; do
        account_package "$package"
    done
fi
if [ -n "$selected" ]; then
    # shellcheck disable=SC2086  # options
    suite "examples in documents" "$LOGS/doc.log" "cargo test --release --doc $selected" \
        cargo test --release --no-fail-fast --doc $selected
fi

# Other people's programs under each command; the runner's own tests first.
if wanted outside; then
    outside/run.py --short --install || true
    suite "outside, its own tests" "$LOGS/outside-tests.log" "outside/test_outside.py" outside/test_outside.py
    # The command with the features that all tests share: by now it is built, unless only this suite was asked for.
    if cargo test --release --workspace --no-run --bin orbit --test face >"$LOGS/outside.build.log" 2>&1; then
        suite "outside" "$LOGS/outside.log" "outside/run.py --short" \
            outside/run.py --short --orbit "$TARGET/release/orbit" --json "$LOGS/outside.jsonl"
    else
        account "$LOGS/outside.build.log" 101 "outside (build)" "cargo test --release --workspace --no-run --bin orbit --test face" 0
    fi
fi

# The contained run: as an ordinary user, so the programs and a scratch directory must be where that user may go.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/orbit-test.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
chmod 755 "$scratch"
mkdir -p "$scratch/bin" "$scratch/tmp"
[ "$(id -u)" != 0 ] || chown 65534:65534 "$scratch/tmp"
runner=
for package in $CONTAINED; do
    echo "$packages" | grep -qx "$package" || continue
    wanted "$package" || continue
    if [ -z "$runner" ]; then
        if ! cargo build --release -p orbit-linux --bin orbit-contained >"$LOGS/contained.build.log" 2>&1; then
            account "$LOGS/contained.build.log" 101 "contained (build)" "cargo build --release -p orbit-linux" 0
            break
        fi
        cp "$TARGET/release/orbit-contained" "$scratch/bin/"
        runner=$scratch/bin/orbit-contained
        # Where the kernel has no filters there is nothing to try.
        if ! "$runner" true 2>"$LOGS/contained.log"; then
            echo "SKIP: needs seccomp filters for the contained run: $(cat "$LOGS/contained.log")"
            skipped=$((skipped + 1))
            break
        fi
    fi
    log=$LOGS/$package.contained.log
    : >"$log"
    worst=0
    begun=$(date +%s)
    while IFS=$tab read -r _ directory _ _ program; do
        name=$(basename "$program")
        cp "$program" "$scratch/bin/$name"
        # Printed as cargo does, so that failing parts are found alike.
        echo "     Running contained $name" >>"$log"
        (
            # A directory the ordinary user may not enter (below /root) is done without.
            if "$runner" test -x "$directory" 2>/dev/null; then cd "$directory" || exit 1; else cd "$scratch/tmp" || exit 1; fi
            # Random histories were run at length above.
            CARGO_MANIFEST_DIR=$directory TMPDIR=$scratch/tmp HOME=$scratch/tmp ORBIT_CONTAINED=1 ORBIT_STEPS="${ORBIT_STEPS:-20000}" \
                timeout --kill-after=10 "$LIMIT" "$runner" "$scratch/bin/$name" --show-output || exit $?
        ) >>"$log" 2>&1 </dev/null
        status=$?
        if [ $status != 0 ]; then
            worst=1
            echo "error: contained $name ended with $status"
            echo "to run it again: cargo build --release -p orbit-linux && $TARGET/release/orbit-contained $program --show-output"
        fi >>"$log"
        rm -f "$scratch/bin/$name"
    done <"$LOGS/$package.programs"
    account "$log" $worst "$package, contained" "ORBIT_TEST_ONLY='^$package\$' scripts/test.sh" $(($(date +%s) - begun))
done

# The crates' own tests fuzz for moments; minutes of it, led by coverage, are for the long run.
if [ -n "${ORBIT_TEST_FULL:-}" ] && wanted fuzz; then
    suite fuzz "$LOGS/fuzz.log" "scripts/fuzz.sh 600" scripts/fuzz.sh 600
fi

# Its compiler of wasm is a build of its own, of minutes.
if [ -n "${ORBIT_TEST_FULL:-}" ] && wanted orbit-services-wasmtime; then
    apart=crates/serve/services-wasmtime/Cargo.toml
    suite orbit-services-wasmtime "$LOGS/orbit-services-wasmtime.log" "cargo test --release --manifest-path $apart" \
        cargo test --release --locked --no-fail-fast --manifest-path $apart -- --show-output
fi

# On new machines of both releases; the tests there are those of `make test`.
if [ -n "${ORBIT_TEST_FULL:-}" ]; then
    # They build everything and run every test.
    LIMIT=$((LIMIT * 3))
    for release in bookworm trixie; do
        wanted "fresh-$release" || continue
        scripts/packages.sh fresh || true
        suite "fresh-$release" "$LOGS/fresh-$release.log" "scripts/fresh.sh $release" scripts/fresh.sh "$release"
    done
fi

if [ -n "$failures" ]; then
    echo "failed:"
    printf '%s' "$failures" | sed 's/^/  /'
    # What failed and why once more, where a reader of a long log finds it.
    head -n 100 "$LOGS/reasons"
fi
echo "logs: $LOGS"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
