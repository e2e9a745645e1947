#!/usr/bin/env bash
# usage: tools/fuzz.sh SECONDS   Builds the fuzzers and runs each; findings go to build-fuzz/artifacts.
set -eu
cd "$(dirname "$0")/.."
if ! command -v clang++-19 >/dev/null && ! command -v clang++ >/dev/null; then
  echo "the fuzzers need clang (package clang-19), which is not here"
  exit 1
fi
tools/build.sh fuzz
for name in parse pipeline; do
  mkdir -p "build-fuzz/corpus/$name" build-fuzz/artifacts
  echo "flexsn_fuzz_$name: $1 s"
  # The first directory takes what is found; the seeds of the repository stay as they are.
  "build-fuzz/flexsn_fuzz_$name" -max_total_time="$1" -print_final_stats=1 \
    -artifact_prefix="build-fuzz/artifacts/$name-" "build-fuzz/corpus/$name" tests/corpus
done
