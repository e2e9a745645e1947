# Every target sets up what it needs first. SETUP=off installs nothing, JOBS=N limits the build.

export JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
FUNCTIONS ?=
SOAK ?=
export PYTHON ?=

.PHONY: help demo test test-asan test-tsan test-architectures soak test-exhaustive test-gpu bench bench-gpu lint format fuzz setup clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       build, and show a neuron of one's own: checked, trained, timed and drawn"
	@echo "make test       build, and run every test"
	@echo "make test-asan  the same with address and undefined-behavior sanitizers"
	@echo "make test-tsan  what threads share, with the thread sanitizer"
	@echo "make test-architectures  every CUDA kernel of the tests to object code for four architectures; no GPU"
	@echo "make soak       a million calls, then ten minutes of processes on one cache; SOAK=\"--seconds 60\" changes it"
	@echo "make test-exhaustive  the f32 functions on all 2^32 operands: minutes each; FUNCTIONS=... for some"
	@echo "make bench      run the benchmarks; prints tables and one of all, writes build/bench.json and bench.png; half an hour"
	@echo "make test-gpu, make bench-gpu   what needs an NVIDIA GPU; PYTHON=... is the python whose torch sees it"
	@echo "make fuzz       run each fuzzer for FUZZ_SECONDS (60)"
	@echo "make lint       check format and rules of the sources"
	@echo "make format     apply the format"
	@echo "make setup      install what all of these need"
	@echo "make clean      remove the build directories"

# What needs no Python is built while its packages arrive, here and below.
demo:
	@tools/setup.sh build
	@tools/venv.sh demo tools/build.sh dev flexsn_demo flexsn_demo_neuron
	@tools/build.sh dev flexsn_programs
	@if [ ! -x .venv/bin/python ] || grep -qE '^(the PyTorch operators|CPU kernels) ' build/left_out.txt; \
	  then build/flexsn_demo; else .venv/bin/python examples/python/demo; fi

test:
	@tools/setup.sh build
	@tools/venv.sh all tools/build.sh dev flexsn_cli flexsn_llvm
	@tools/build.sh dev
	@tools/test.sh dev

test-asan:
	@tools/setup.sh build
	@tools/build.sh asan
	@tools/test.sh asan

test-tsan:
	@tools/setup.sh build
	@tools/build.sh tsan flexsn_concurrency_tests
	@tools/test.sh tsan

test-architectures:
	@tools/setup.sh build
	@tools/venv.sh all
	@tools/build.sh dev flexsn_tests
	@FLEXSN_ALL_ARCHITECTURES=1 ctest --test-dir build -j "$$(nproc)" --output-on-failure -R '^Architecture/CudaNvrtc'

soak:
	@tools/setup.sh build
	@tools/venv.sh all
	@tools/build.sh dev flexsn_torch
	@PYTHONPATH=python .venv/bin/python tests/python/soak.py $(SOAK)

test-exhaustive:
	@tools/setup.sh build
	@tools/build.sh dev flexsn_exhaustive
	@build/flexsn_exhaustive --record docs/exhaustive.txt $(FUNCTIONS)

bench:
	@tools/setup.sh build
	@tools/venv.sh all
	@tools/build.sh dev flexsn_programs
	@tools/build.sh release flexsn_benchmarks
	@mkdir -p build
	@! [ -x build-release/flexsn_bench ] || build-release/flexsn_bench --benchmark_out=build/core_bench.json --benchmark_out_format=json
	@! [ -x build-release/flexsn_cpu_bench ] || build-release/flexsn_cpu_bench --out build/cpu_bench.json
	@! [ -f build/libflexsn_torch.so ] || .venv/bin/python bench/torch_bench.py --out build/torch_bench.json
	@! [ -f build/libflexsn_torch.so ] || { tools/build.sh dev flexsn_train_libtorch && .venv/bin/python bench/libtorch_bench.py; }
	@! [ -f build/libflexsn_torch.so ] || .venv/bin/python bench/neurons_bench.py
	@! [ -f build/libflexsn_torch.so ] || .venv/bin/python bench/table.py --torch build/torch_bench.json \
	  --cpp build/cpu_bench.json --out build/bench.json --plot build/bench.png

test-gpu:
	@tools/gpu.sh test

bench-gpu:
	@tools/gpu.sh bench

fuzz:
	@tools/setup.sh build fuzz
	@tools/venv.sh all
	@tools/fuzz.sh $(FUZZ_SECONDS)

lint:
	@tools/setup.sh lint
	@tools/lint.sh

format:
	@tools/setup.sh lint
	@tools/lint.sh --format

setup:
	@rm -f build/setup.failed-*
	@tools/setup.sh build lint fuzz
	@tools/venv.sh all

clean:
	rm -rf build build-release build-asan build-tsan build-fuzz build-gpu
