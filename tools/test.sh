#!/usr/bin/env bash
# usage: tools/test.sh PRESET   Runs the tests of a built preset, then names what was left out and why.
set -u
cd "$(dirname "$0")/.."
dir=build
[ "$1" = dev ] || dir=build-$1

if grep '^flexsn_tests' "$dir/left_out.txt"; then
  echo "the tests could not be built, so none was run: install GoogleTest (libgtest-dev) first"
  exit 1
fi

ctest --preset "$1" -j "${JOBS:-$(nproc)}"
status=$?

# CTest names the tests that were skipped, but the reason is in its log only.
skipped=$(awk '
  /: Skipped$/ { reason = ""; reading = 1; next }
  /^\[  SKIPPED \] .* \(.* ms\)$/ { sub(/^\[  SKIPPED \] /, ""); sub(/ \(.*/, ""); print $0 " (" reason ")"; reading = 0 }
  reading && NF { reason = reason (reason == "" ? "" : " ") $0 }
' "$dir/Testing/Temporary/LastTest.log")

echo
echo "left out:"
{
  cat "$dir/left_out.txt"
  [ -z "$skipped" ] || echo "$skipped"
  sed -n 's/^left out: //p' "$dir/Testing/Temporary/LastTest.log"  # tests that leave out a part of themselves
} | sed 's/^/  /' | grep . || echo "  nothing"

# What a failed test printed stands far above: here is the end of it again.
[ $status = 0 ] || awk '
  FNR == NR { sub(/^[0-9]+:/, ""); failed[$0]; next }
  /^[0-9]+\/[0-9]+ Testing: / { sub(/^[0-9]+\/[0-9]+ Testing: /, ""); name = $0; lines = 0; next }
  { text[lines++] = $0 }
  name in failed && index($0, "\"" name "\" end time: ") == 1 {
    print "\nfailed: " name
    for (line = lines > 60 ? lines - 60 : 0; line < lines; ++line) print text[line]
  }
' "$dir/Testing/Temporary/LastTestsFailed.log" "$dir/Testing/Temporary/LastTest.log"
exit $status
