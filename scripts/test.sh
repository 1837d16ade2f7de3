#!/bin/sh
# Runs every test of the project and says in its last line: N passed, N failed, N skipped.
#
#   scripts/test.sh                     all packages; ORBIT_TEST_ONLY=REGEX picks some by name
#   ORBIT_TEST_FULL=1 scripts/test.sh   the same with whole campaigns (the tests read it) and longer fuzzing
#
# Four parts: each package's tests; those of the library again "contained", as an ordinary user under a model of Docker's
# seccomp profile; in the full run fuzzing led by coverage, and demo and tests in
# minimal roots of Debian 12 and 13. The output of each suite is kept in target/test-logs. Of
# a suite that fails the output is shown, and the command that runs it again. A skip is a line "SKIP: needs ...".
set -u
cd "$(dirname "$0")/.." || exit 1

# Three times what a suite takes on the slowest machines; one that hangs counts as failed.
LIMIT=2400
[ -z "${ORBIT_TEST_FULL:-}" ] || LIMIT=7200
LIMIT=${ORBIT_TEST_LIMIT:-$LIMIT}
TARGET=${CARGO_TARGET_DIR:-target}
LOGS=$TARGET/test-logs
CONTAINED="orbit orbit-c"
export RUST_BACKTRACE="${RUST_BACKTRACE:-1}"

scripts/packages.sh build test || exit 1
# For the laboratory's short form, and for ports into servers: their tests skip themselves where these are not available.
scripts/packages.sh lab || true
scripts/packages.sh ports || true
mkdir -p "$LOGS" || exit 1
LOGS=$(cd "$LOGS" && pwd)
rm -f "$LOGS"/*.log

passed=0 failed=0 skipped=0
failures=

# Adds a log's numbers to the totals. $1 log, $2 exit status, $3 name, $4 the command that runs it again, $5 seconds.
account() {
    ok=$(sed -n 's/^test result:.* \([0-9][0-9]*\) passed;.*/\1/p' "$1" | awk '{n += $1} END {print n + 0}')
    bad=$(sed -n 's/^test result:.* \([0-9][0-9]*\) failed;.*/\1/p' "$1" | awk '{n += $1} END {print n + 0}')
    skip=$(grep -c '^SKIP:' "$1")
    # A test file that crashes prints no result.
    crashed=$(grep -c -e '(signal: [0-9]' -e '^error: contained .* ended with 1[23][0-9]' "$1")
    bad=$((bad + crashed))
    # A test that skips itself ends well for the test harness: it is not counted as passed.
    [ "$skip" -le "$ok" ] && ok=$((ok - skip))
    note=
    case $2 in
    0) ;;
    124 | 137) bad=$((bad + 1)) note=", stopped after $LIMIT s" ;;
    *) [ "$bad" -gt 0 ] || bad=1 ;;
    esac
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    printf '%-34s %s passed, %s failed, %s skipped (%s s%s)\n' "$3" "$ok" "$bad" "$skip" "$5" "$note"
    [ "$2" = 0 ] && return
    failures="$failures$3: $4
"
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

for package in $packages; do
    wanted "$package" || continue
    again="cargo test --release -p $package -- --show-output"
    printf '%-34s building\n' "$package"
    # Programs too: tests start them.
    if ! cargo test --release --no-run -p "$package" >"$LOGS/$package.build.log" 2>&1; then
        account "$LOGS/$package.build.log" 101 "$package (build)" "cargo test --release --no-run -p $package" 0
        continue
    fi
    suite "$package" "$LOGS/$package.log" "$again" \
        cargo test --release --no-fail-fast -p "$package" -- --show-output
done

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
    directory=$(cargo tree -p "$package" --depth 0 --prefix none | sed -n '1s/.*(\(\/[^)]*\)).*/\1/p')
    programs=$(cargo test --release --no-run -p "$package" --message-format=json 2>/dev/null |
        grep '"test":true},"features"' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
    for program in $programs; do
        name=$(basename "$program")
        cp "$program" "$scratch/bin/$name"
        # Printed as cargo does, so that failing parts are found alike.
        echo "     Running contained $name" >>"$log"
        (
            # A directory the ordinary user may not enter (below /root) is done without.
            if "$runner" test -x "$directory" 2>/dev/null; then cd "$directory" || exit 1; else cd "$scratch/tmp" || exit 1; fi
            CARGO_MANIFEST_DIR=$directory TMPDIR=$scratch/tmp HOME=$scratch/tmp ORBIT_CONTAINED=1 \
                timeout --kill-after=10 "$LIMIT" "$runner" "$scratch/bin/$name" --show-output || exit $?
        ) >>"$log" 2>&1 </dev/null
        status=$?
        if [ $status != 0 ]; then
            worst=1
            echo "error: contained $name ended with $status"
            echo "to run it again: cargo build --release -p orbit-linux && $TARGET/release/orbit-contained $program --show-output"
        fi >>"$log"
        rm -f "$scratch/bin/$name"
    done
    account "$log" $worst "$package, contained" "ORBIT_TEST_ONLY='^$package\$' scripts/test.sh" $(($(date +%s) - begun))
done

# The crates' own tests fuzz for moments; minutes of it, led by coverage, are for the long run.
if [ -n "${ORBIT_TEST_FULL:-}" ] && wanted fuzz; then
    suite fuzz "$LOGS/fuzz.log" "scripts/fuzz.sh 600" scripts/fuzz.sh 600
fi

# On new machines of both releases; the tests there are those of `make test`.
if [ -n "${ORBIT_TEST_FULL:-}" ]; then
    for release in bookworm trixie; do
        wanted "fresh-$release" || continue
        scripts/packages.sh fresh || true
        suite "fresh-$release" "$LOGS/fresh-$release.log" "scripts/fresh.sh $release" scripts/fresh.sh "$release"
    done
fi

if [ -n "$failures" ]; then
    echo "failed:"
    printf '%s' "$failures" | sed 's/^/  /'
fi
echo "logs: $LOGS"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
