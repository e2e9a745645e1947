#!/usr/bin/env bash
# usage: tools/venv.sh [demo|all [COMMAND...]]   COMMAND runs while packages arrive, and prints to build/meanwhile.log.
# Makes .venv with torch, the Python packages of the demo or all that anything here uses, and flexsn itself in it;
# silent when nothing is missing. Never fails: what needs a package that is not there is left out.
# SETUP=off installs nothing.
set -u
cd "$(dirname "$0")/.."
packages=(torch==2.13.0 numpy matplotlib scikit-learn pytest hypothesis)
[ "${1:-all}" = demo ] || packages+=(triton==3.9.0 scikit-build-core loguru spikingjelly==2.0.0 nvidia-cuda-nvrtc==13.4.92)
shift $(($# > 0))
log=build/venv.log
failed=build/setup.failed-venv

# The packages that .venv lacks; one whose version does not suit counts as there.
missing() {
  local package package_dir python=(.venv/lib/python3*/site-packages)
  for package in "${packages[@]}"; do
    package_dir=${package%%=*}
    compgen -G "${python[0]}/${package_dir//-/_}-*.dist-info" >/dev/null || echo "$package"
  done
}

# The package is used from the checkout: its library is built by CMake.
link_checkout() {
  local site=(.venv/lib/python3*/site-packages)
  [ ! -d "${site[0]}" ] || echo "$PWD/python" >"${site[0]}/flexsn_checkout.pth"
}

mapfile -t wanted < <(missing)
link_checkout
[ ${#wanted[@]} != 0 ] || exit 0
leave_out() {
  echo "left out: what needs ${wanted[*]} ($1)"
  exit 0
}
[ "${SETUP:-on}" != off ] || leave_out 'not in .venv, and SETUP=off installs nothing'
# An attempt that failed is not repeated for a day.
if [ -n "$(find "$failed" -mmin -1440 2>/dev/null)" ] && [ "$(cat "$failed")" = "${wanted[*]}" ]; then
  leave_out 'could not be installed within the last day; make setup tries again'
fi

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  leave_out 'python3 cannot make .venv; on Debian it needs the package python3-venv'
fi

mkdir -p build
echo "setup: installing ${wanted[*]} into .venv (log: $log)"
[ $# = 0 ] || "$@" >build/meanwhile.log 2>&1 &
if ! .venv/bin/python -m pip --version >"$log" 2>&1; then
  rm -rf .venv
  python3 -m venv .venv >>"$log" 2>&1
fi
pip_install() {
  .venv/bin/python -m pip install --no-compile --disable-pip-version-check --retries 1 "$@" >>"$log" 2>&1 </dev/null
}
together=() alone=()
for package in "${wanted[@]}"; do
  case $package in
    spikingjelly*) alone+=("$package") ;;  # what it asks for is more than its neurons need
    *) together+=("$package") ;;
  esac
done
if [ ${#together[@]} != 0 ] && ! pip_install "${together[@]}"; then
  # A package that is not offered must not stop the others.
  for package in "${together[@]}"; do pip_install "$package"; done
fi
for package in "${alone[@]}"; do pip_install --no-deps "$package"; done
wait
link_checkout
mapfile -t wanted < <(missing)
if [ ${#wanted[@]} != 0 ]; then
  echo "${wanted[*]}" >"$failed"
  leave_out "could not be installed: $(grep -i error "$log" | tail -n 1)"
fi
rm -f "$failed"
