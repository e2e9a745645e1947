#!/usr/bin/env bash
# usage: tools/setup.sh GROUP...   (build, lint, fuzz)
# Installs what is missing for the named groups; silent when nothing is.
# SETUP=off installs nothing: what is missing is then left out.
set -u
cd "$(dirname "$0")/.."

# groups, package, class, what it is for. Without a `required` package nothing builds; without an
# `optional` one a part is left out; a `speed` one comes along, but is never a reason to install.
needs='
build,fuzz g++                required a C++20 compiler
build,fuzz cmake              required cmake 3.25 or newer
build,fuzz make               required a build tool (ninja or make)
build,fuzz ninja-build        speed    faster builds
build,fuzz ccache             speed    faster rebuilds
build      libgtest-dev       optional flexsn_tests
build      libbenchmark-dev   optional flexsn_bench
build      libcli11-dev       optional flexsn_cli, the program flexsn
build      nlohmann-json3-dev optional flexsn_cli, the program flexsn
build      libmpfr-dev        optional the f64 accuracy tests
build      libgmp-dev         optional the f64 accuracy tests
build      llvm-19-dev        optional CPU kernels
build      libzstd-dev        optional CPU kernels
build      zlib1g-dev         optional CPU kernels
build      cross-compiler     optional the test of CPU kernels on the other architecture
build      cross-libc         optional the test of CPU kernels on the other architecture
build      qemu-user          optional the test of CPU kernels on the other architecture
build      python3-venv       optional the test beside other copies of LLVM
build      python3-dev        optional the short way from Python to the operators
lint       clang-format-19    optional the format check
fuzz       clang-19           optional the fuzzers
fuzz       libclang-rt-19-dev optional the fuzzers
'

# The architecture whose kernels are tried under emulation is the one that this machine is not.
cross=aarch64
[ "$(uname -m)" = aarch64 ] && cross=x86_64
needs=${needs/cross-compiler/gcc-${cross/_/-}-linux-gnu}
needs=${needs/cross-libc/libc6-dev-$([ $cross = aarch64 ] && echo arm64 || echo amd64)-cross}

on_path() { command -v "$1" >/dev/null; }

# Which headers the compiler finds; one run of the preprocessor for all of them.
probe_headers() {
  local dir include=()
  IFS=: read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for dir in "${prefixes[@]}"; do include+=("-I$dir/include"); done
  for dir in gtest/gtest.h benchmark/benchmark.h CLI/CLI.hpp nlohmann/json.hpp mpfr.h gmp.h zlib.h zstd.h; do
    printf '#if __has_include(<%s>)\n"%s"\n#endif\n' "$dir" "$dir"
  done | "${CXX:-c++}" -E -P -x c++ "${include[@]}" - 2>/dev/null
}

# Is the thing itself here? Where it came from does not matter.
has() {
  case $1 in
    g++) on_path "${CXX:-c++}" ;;
    cmake) [ "$(printf '%s\n' 3.25 "$(cmake --version 2>/dev/null | sed -n '1s/.* //p')" | sort -V | head -1)" = 3.25 ] ;;
    make) on_path make || on_path ninja ;;
    ninja-build) on_path ninja ;;
    ccache) on_path ccache ;;
    libgtest-dev) [[ $headers == *'"gtest/gtest.h"'* ]] ;;
    libbenchmark-dev) [[ $headers == *'"benchmark/benchmark.h"'* ]] ;;
    libcli11-dev) [[ $headers == *'"CLI/CLI.hpp"'* ]] ;;
    nlohmann-json3-dev) [[ $headers == *'"nlohmann/json.hpp"'* ]] ;;
    libmpfr-dev) [[ $headers == *'"mpfr.h"'* ]] ;;
    libgmp-dev) [[ $headers == *'"gmp.h"'* ]] ;;
    llvm-19-dev) compgen -G '/usr/lib/llvm-19/lib/cmake/llvm/LLVMConfig.cmake' >/dev/null || [ -n "${LLVM_DIR:-}" ] ;;
    libzstd-dev) [[ $headers == *'"zstd.h"'* ]] ;;
    zlib1g-dev) [[ $headers == *'"zlib.h"'* ]] ;;
    gcc-*-linux-gnu) on_path "$cross-linux-gnu-gcc" ;;
    libc6-dev-*-cross) echo '#include <stdio.h>' | "$cross-linux-gnu-gcc" -E - >/dev/null 2>&1 ;;
    qemu-user) on_path "qemu-$cross" ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    python3-dev) python3 -c 'import os, sysconfig; exit(not os.path.isfile(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null ;;
    clang-format-19) tools/clang_format.sh >/dev/null ;;
    clang-19) on_path clang++-19 || on_path clang++ ;;
    libclang-rt-19-dev)
      local clang=clang++-19
      on_path $clang || clang=clang++
      compgen -G "$($clang -print-runtime-dir 2>/dev/null)/libclang_rt.fuzzer*.a" >/dev/null ||
        compgen -G "$($clang -print-resource-dir 2>/dev/null)/lib/linux/libclang_rt.fuzzer*.a" >/dev/null
      ;;
  esac
}

# Sets missing (rows that are not here) and worst (the most serious class among them).
look() {
  hash -r
  headers=
  [[ " $groups " == *' build '* ]] && headers=$(probe_headers)
  missing=() worst=none
  while read -r of package class what; do
    [[ -n $of && $of =~ ${groups// /|} ]] || continue
    has "$package" && continue
    missing+=("$package|$class|$what")
    case $class in
      required) worst=required ;;
      optional) [ $worst = required ] || worst=optional ;;
    esac
  done <<<"$needs"
}

# The packages to ask for: those missing and not yet installed (an installed one that does not
# serve the compiler in use would not serve it after an install either).
packages() {
  local row
  for row in "${missing[@]}"; do
    dpkg-query -W -f '${db:Status-Status}\n' "${row%%|*}" 2>/dev/null | grep -qx installed ||
      echo "${row%%|*}"
  done
}

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "$@" >>build/setup.log 2>&1 </dev/null
}

install() {
  echo "setup: installing $* (log: build/setup.log)"
  if apt -o APT::Update::Error-Mode=any update; then
    apt install --no-install-recommends "$@" && return
    # One package that this system does not offer must not stop the others.
    local package
    for package in "$@"; do apt install --no-install-recommends "$package"; done
  else
    apt install --no-install-recommends "$@"  # the lists of an earlier update may still do
  fi
}

# clang-format also comes as a Python package, which needs neither root nor a system package.
pip_install() {
  [[ " $groups " == *' lint '* ]] && ! has clang-format-19 || return
  python3 -m venv build/clang-format && build/clang-format/bin/pip install -q 'clang-format==19.*'
  look
} >>build/setup.log 2>&1

groups=${*:-build}
failed=build/setup.failed-${groups// /-}
look
[ $worst = none ] && exit 0

mapfile -t wanted < <(packages)
mkdir -p build
# An attempt that failed is not repeated for a day, unless nothing can be built without it.
tried() {
  [ $worst = optional ] && [ -n "$(find "$failed" -mmin -1440 2>/dev/null)" ] &&
    [ "$(cat "$failed")" = "${wanted[*]}" ]
}
if [ "${SETUP:-on}" != off ] && ! tried; then
  as_root=() refused=no
  : >build/setup.log
  if on_path apt-get && [ ${#wanted[@]} != 0 ]; then
    if [ "$(id -u)" = 0 ]; then
      install "${wanted[@]}"
    elif sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
      install "${wanted[@]}"
    else
      refused=yes
    fi
    look
  fi
  pip_install
  mapfile -t wanted < <(packages)
  rm -f "$failed"
  if [ $worst != none ] && [ $refused = yes ]; then
    echo "setup: packages are missing, and only root can install them. Run this once, then try again:"
    echo "  sudo apt-get update && sudo apt-get install --no-install-recommends ${wanted[*]}"
    echo "(or add SETUP=off to go on without what they are for)"
    exit 1
  elif [ $worst != none ]; then
    tail -n 6 build/setup.log
    echo "${wanted[*]}" >"$failed"
  fi
fi

for row in "${missing[@]}"; do
  IFS='|' read -r package class what <<<"$row"
  case $class-$worst in
    required-*) echo "setup: $what is missing (package $package) and could not be installed" ;;
    optional-optional) echo "left out: $what (package $package is missing and could not be installed)" ;;
  esac
done
[ $worst != required ]
