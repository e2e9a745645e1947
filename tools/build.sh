#!/usr/bin/env bash
# usage: tools/build.sh PRESET [TARGET...]   Configures, with $CMAKE_OPTIONS, and builds; CMake's report is in
# configure.log.
set -eu
unset MAKEFLAGS MAKELEVEL  # or a make below us reports each directory it enters
cd "$(dirname "$0")/.."
preset=$1
shift
dir=build
[ "$preset" = dev ] || dir=build-$preset
options=()

# A build directory keeps its generator; a new one gets Ninja where there is one.
generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$dir/CMakeCache.txt" 2>/dev/null || true)
if [ -z "$generator" ]; then
  generator='Unix Makefiles'
  ! command -v ninja >/dev/null || generator=Ninja
fi
if [ "$preset" = fuzz ] && ! command -v clang++-19 >/dev/null; then
  options+=(-D CMAKE_CXX_COMPILER=clang++)
fi

mkdir -p "$dir"
# shellcheck disable=SC2086 # several options are several words
if ! cmake --preset "$preset" -G "$generator" "${options[@]}" ${CMAKE_OPTIONS:-} >"$dir/configure.log" 2>&1; then
  cat "$dir/configure.log"
  exit 1
fi
sed -n 's/^-- \(left out: .*\)/\1/p' "$dir/configure.log"

for target in "$@"; do
  if grep -q "^$target\b" "$dir/left_out.txt"; then
    echo "$target cannot be built here: $(grep "^$target\b" "$dir/left_out.txt")"
    exit 1
  fi
done
cmake --build "$dir" -j "${JOBS:-$(nproc)}" ${1:+--target "$@"}
