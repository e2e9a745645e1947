#!/usr/bin/env bash
# usage: tools/fuzz.sh SECONDS   Builds the fuzzers and runs each; findings go to build-fuzz/artifacts.
# $FUZZ_SEED is the seed of the differential fuzzer, by default another one each time.
set -eu
cd "$(dirname "$0")/.."
status=0

seed=${FUZZ_SEED:-$(date +%s)}
tools/build.sh dev flexsn_differential
grep -q '^the PyTorch operators ' build/left_out.txt || tools/build.sh dev flexsn_torch
echo "flexsn_differential: $1 s, seed $seed"
build/flexsn_differential --seed "$seed" --seconds "$1" --out build-fuzz/artifacts \
  --stages text,passes,plans,chunks,cpu,torch/10,triton/30,cuda/100 || status=1

if ! command -v clang++-19 >/dev/null && ! command -v clang++ >/dev/null; then
  echo "the other fuzzers need clang (package clang-19), which is not here"
  exit 1
fi
tools/build.sh fuzz
for name in parse pipeline; do
  mkdir -p "build-fuzz/corpus/$name" build-fuzz/artifacts
  echo "flexsn_fuzz_$name: $1 s"
  # The first directory takes what is found; the seeds of the repository stay as they are.
  "build-fuzz/flexsn_fuzz_$name" -max_total_time="$1" -print_final_stats=1 \
    -artifact_prefix="build-fuzz/artifacts/$name-" "build-fuzz/corpus/$name" tests/corpus || status=1
done
exit $status
