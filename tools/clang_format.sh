#!/usr/bin/env bash
# Prints the clang-format to use (19, else newer), or fails when there is none.
root=$(dirname "$0")/..
for tool in clang-format-19 "$root/build/clang-format/bin/clang-format" clang-format; do
  version=$("$tool" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p')
  if [ "${version:-0}" -ge 19 ]; then
    echo "$tool"
    exit 0
  fi
done
exit 1
