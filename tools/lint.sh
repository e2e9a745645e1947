#!/usr/bin/env bash
# usage: tools/lint.sh [--format]   Checks the rules of the sources, or applies the format.
set -u
cd "$(dirname "$0")/.."
status=0
fail() {
  echo "lint: $1"
  status=1
}

# Tracked files and new ones, less those that are deleted but still in the index.
files() { git ls-files -co --exclude-standard -- "$@" | while read -r f; do [ ! -f "$f" ] || echo "$f"; done; }
git ls-files >/dev/null || exit 1
mapfile -t cpp < <(files '*.cpp' '*.h')
mapfile -t scripts < <(files '*.sh' .ci/run)
mapfile -t texts < <(files '*.cpp' '*.h' '*.def' '*.sh' '*.cmake' '*.py' '*.md' '*.json' CMakeLists.txt \
  '*/CMakeLists.txt' .ci/run .clang-format)

if tool=$(tools/clang_format.sh); then
  if [ "${1:-}" = --format ]; then
    exec "$tool" -i "${cpp[@]}"
  fi
  "$tool" --dry-run -Werror --ferror-limit=20 "${cpp[@]}" || fail "the format is off; run make format"
elif [ "${1:-}" = --format ]; then
  echo "clang-format 19 is not here"
  exit 1
else
  echo "left out: the format check (no clang-format of version 19 or newer)"
fi

for f in "${texts[@]}" Makefile; do
  lines=$(wc -l <"$f")
  [[ $f == *.md ]] || [ "$lines" -le 800 ] || fail "$f has $lines lines; 800 is the limit"
done
! grep -nE '[[:blank:]]+$' "${texts[@]}" Makefile || fail "blanks at the end of a line"
! grep -nP '\t' "${texts[@]}" || fail "tabs"

lists=(CMakeLists.txt tests/tests.cmake)
for f in "${cpp[@]}"; do
  case $f in
    tests/package/* | fuzz/parse.cpp | fuzz/pipeline.cpp) ;;
    *.cpp) grep -qE "(^|[ (])${f//./\\.}([ )]|$)" "${lists[@]}" || fail "$f is not in CMakeLists.txt" ;;
  esac
done

for f in $(files 'tests/python/test_*.py'); do
  name=$(basename "$f" .py)
  grep -qE "^ *${name#test_}\)?$" "${lists[@]}" || fail "$f is not in CMakeLists.txt"
done

# The core sees the standard library and itself: standard headers have neither a dot nor a slash.
mapfile -t core < <(files 'src/*' 'include/*' ':!include/flexsn/torch.h')
# The store needs a file system, the pool processors and processes.
posix='^src/(store|pool)\.cpp:[0-9]+:#include <(dirent|fcntl|sched|signal|sys/stat|unistd)\.h>'
! grep -nE '^ *# *include *<' "${core[@]}" | grep -vE '<[a-z0-9_]+>' | grep -vE "$posix" || fail "the core includes a header that is not standard"
while IFS=: read -r f name; do
  [ -f "src/$name" ] || [ -f "include/$name" ] || fail "$f includes \"$name\", which is not a file of the core"
done < <(grep -HoP '^ *# *include *"\K[^"]+' "${core[@]}")

# One file sees LLVM.
! grep -nE '^ *# *include *<llvm' -r src include cli cpu tests bench | grep -v '^cpu/jit\.cpp:' || fail "LLVM is for cpu/jit.cpp alone"

for f in "${scripts[@]}"; do
  bash -n "$f" || fail "$f is not a valid script"
done

[ $status != 0 ] || echo "lint: ${#cpp[@]} C++ files, ${#scripts[@]} scripts: fine"
exit $status
