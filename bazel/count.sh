#!/bin/bash
# count.sh EVENTS
#
# Prints how many tests passed and failed in the run of `bazel test` that wrote EVENTS,
# its --build_event_json_file: the sum of the last lines of run_test.sh. A target that
# did not pass and has nobody to say so, one that was not built say, is a failed test.
set -euo pipefail
events=$1 passed=0 failed=0

while read -r label; do
	summary=$(grep -F "{\"id\":{\"testSummary\":{\"label\":\"$label\"" "$events" || true)
	log=$(grep -o 'file://[^"]*/test\.log' <<<"$summary" | head -n 1 || true)
	p=0 f=0
	if [ -n "$log" ] && [[ $(tail -n 1 "${log#file://}") =~ ^tests:\ ([0-9]+)\ passed,\ ([0-9]+)\ failed ]]; then
		p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]}
	fi
	if [ "$f" = 0 ] && ! grep -q '"overallStatus":"PASSED"' <<<"$summary"; then
		f=1
	fi
	passed=$((passed + p)) failed=$((failed + f))
done < <(sed -n 's/^{"id":{"targetConfigured":{"label":"\([^"]*\)".*"testSize":.*/\1/p' "$events")
echo "$passed passed, $failed failed"
