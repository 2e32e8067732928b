#!/bin/bash
# Runs a test for Bazel. Its last line says how many passed, and it fails when none did:
# tests that were all skipped have shown nothing.
set -u
runfiles=$PWD package=. in_tree='' counts=yes
#SETTINGS

root=$runfiles
[ -z "$in_tree" ] || root=$(dirname "$(readlink -f "$runfiles/go.mod")")
cd "$root/$package" || exit 1
export HOME=$TEST_TMPDIR GOCACHE=${GOCACHE:-$TEST_TMPDIR/go-build}

args=()
if [ -n "$counts" ]; then
	# Before Bazel would end it without a word.
	args+=(-test.v "-test.timeout=$((TEST_TIMEOUT * 9 / 10))s")
	[ -z "${TESTBRIDGE_TEST_ONLY:-}" ] || args+=("-test.run=$TESTBRIDGE_TEST_ONLY")
fi
log=$TEST_TMPDIR/log
run() {
	COMMAND "$@" 2>&1 | tee "$log"
	status=${PIPESTATUS[0]}
}
run "${args[@]}" "$@"
if [ -n "$counts" ] && [ -z "${TESTBRIDGE_TEST_ONLY:-}" ] && grep -q '^testing: warning: no tests to run' "$log"; then
	# Benchmarks and nothing else: once each, to see that they still run.
	run "${args[@]}" -test.bench=. -test.benchtime=1x
fi

if [ -z "$counts" ]; then
	passed=$((status == 0)) failed=$((status != 0)) skipped=0
else
	# A test with subtests is as many as these: its own line says "PASS" where each of
	# them was skipped.
	read -r passed failed skipped < <(awk '
		/^ *--- (PASS|FAIL|SKIP): / {
			ended[$3] = $2
			for (name = $3; sub(/\/[^\/]*$/, "", name); ) parent[name] = 1
		}
		/^Benchmark[^ \t]*[ \t]+[0-9]+[ \t]/ { n["PASS:"]++ }
		END {
			for (name in ended) if (!(name in parent)) n[ended[name]]++
			print n["PASS:"] + 0, n["FAIL:"] + 0, n["SKIP:"] + 0
		}' "$log")
	[ "$status" = 0 ] || [ "$failed" -gt 0 ] || failed=1
fi
if [ "$status" = 0 ] && [ "$passed" = 0 ]; then
	echo "no test passed: $skipped were skipped"
	status=1 failed=1
fi
echo "tests: $passed passed, $failed failed, $skipped skipped"
exit "$status"
