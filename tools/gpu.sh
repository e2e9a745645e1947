#!/usr/bin/env bash
# usage: tools/gpu.sh test|bench   Builds for the torch of $PYTHON (default: .venv's, else python3) and runs what needs
# an NVIDIA GPU. Installs nothing.
set -eu
case ${1:-} in test | bench) ;; *) echo "usage: tools/gpu.sh test|bench" && exit 1 ;; esac
cd "$(dirname "$0")/.."
python=${PYTHON:-}
if [ -z "$python" ]; then
  python=.venv/bin/python
  [ -x "$python" ] || python=python3
fi
command -v "$python" >/dev/null || {
  echo "there is no $python; say which python has a torch that sees the GPU: make $1-gpu PYTHON=/path/to/python3"
  exit 1
}
python=$(command -v "$python")
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "$python has no torch that sees a GPU; say which one does: make $1-gpu PYTHON=/path/to/python3"
  exit 1
fi

CMAKE_OPTIONS="-D FLEXSN_PYTHON=$python" tools/build.sh gpu flexsn_torch flexsn_programs flexsn_neuron_texts \
  $([ "$1" = bench ] || echo flexsn_tests flexsn_torch_tests flexsn_gpu_examples)
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} FLEXSN_LIBRARY=$PWD/build-gpu/libflexsn_torch.so
# Where there is no LLVM, the CPU's part of a comparison is the interpreter's, which defines the bits.
build-gpu/flexsn list targets | grep -Eq '^cpu +yes' || export FLEXSN_TARGET=interpreter

if [ "$1" = bench ]; then
  mkdir -p build
  exec "$python" bench/gpu_bench.py --out build/gpu_bench.json
fi

export FLEXSN_NEURON_TEXTS=$PWD/build-gpu/flexsn_neuron_texts
# Side by side: most of their time goes to compilers that use one processor each.
running=()
# Each is a group of processes, as an interrupt of this script does not reach them by itself.
set -m
trap 'kill -- "${running[@]/#/-}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
start() {
  "$@" >"build-gpu/test.${#running[@]}.log" 2>&1 &
  running+=($!)
}
digests() {
  local neurons target
  neurons=$(build-gpu/flexsn list neurons --json | "$python" -c 'import json, sys; print(*(n["name"] for n in json.load(sys.stdin)))')
  for target in interpreter cuda; do
    # shellcheck disable=SC2086  # names are words
    build-gpu/flexsn check $neurons --digest --target $target >build-gpu/digest.$target
  done
  diff build-gpu/digest.interpreter build-gpu/digest.cuda
  echo "digests of $(wc -l <build-gpu/digest.cuda) neurons: the same by the interpreter and by CUDA kernels"
}
start digests
pytest=("$python" -m pytest -q -p no:cacheprovider)
start ctest --test-dir build-gpu --output-on-failure --no-tests=error -j "$(nproc)" \
  -R '^(Cuda(Kernels|Runs|Sizes|Absent|Sums|Fake)|Shard/Cuda(Neurons|RandomGraphs|Rows)|TorchModuleOnCuda)'
start "${pytest[@]}" tests/python/test_cuda.py
start "${pytest[@]}" tests/python/test_peers_bugs.py
if "$python" -c 'import triton' 2>/dev/null; then
  start "${pytest[@]}" tests/python/test_triton_gpu.py -k test_random_graphs
  start "${pytest[@]}" tests/python/test_triton_gpu.py -k 'test_built_in_neurons and even'
  start "${pytest[@]}" tests/python/test_triton_gpu.py -k 'test_built_in_neurons and odd'
  start "${pytest[@]}" tests/python/test_triton_gpu.py -k 'not test_random_graphs and not test_built_in_neurons'
else
  echo "left out: the exported Triton modules ($python has no triton)"
fi
if [ -x build-gpu/flexsn_gpu_arrays ]; then
  start build-gpu/flexsn_gpu_arrays
else
  echo "left out: the example gpu_arrays (CMake found no CUDA toolkit)"
fi
# The tests of the CPU's path once more, on tensors that lie on the GPU.
on_cuda() {
  start env PYTHONPATH="$PYTHONPATH:$PWD/tests/python" "${pytest[@]}" -p on_cuda "${@/#/tests/python/test_}"
}
on_cuda scan.py scan_operator.py
on_cuda captures.py guards.py hidden_reads.py
on_cuda changes.py user_functions.py functional.py base.py
on_cuda calls.py handles.py connections.py compile.py surrogates.py
on_cuda neurons.py
on_cuda neurons_by_name.py neurons_errors.py fused_property.py flexsn_module.py
on_cuda operators.py flexsn_use.py flexsn_kernel.py surroundings.py bad_use.py
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    start compute-sanitizer --tool "$tool" --error-exitcode 1 \
      build-gpu/flexsn_tests --gtest_brief=1 --gtest_filter='CudaKernels.EveryType*:CudaKernels.ParameterGradients*'
  done
else
  echo "left out: memcheck and racecheck of compute-sanitizer (it is not installed)"
fi
failed=0
for i in "${!running[@]}"; do
  wait "${running[$i]}" || failed=1
  cat "build-gpu/test.$i.log"
done
[ $failed = 0 ]
