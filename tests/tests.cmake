# Examples, tests and benchmarks: a part of CMakeLists.txt, whose folder paths start from.

enable_testing()

flexsn_executable(flexsn_demo
  examples/demo.cpp)
flexsn_executable(flexsn_demo_neuron
  examples/demo_neuron.cpp)
flexsn_executable(flexsn_readme
  examples/readme.cpp)
add_custom_target(flexsn_gpu_examples)
find_package(CUDAToolkit QUIET)
if(TARGET CUDA::cudart_static)
  flexsn_executable(flexsn_gpu_arrays
    examples/gpu_arrays.cpp)
  target_link_libraries(flexsn_gpu_arrays PRIVATE CUDA::cudart_static)
  add_dependencies(flexsn_gpu_examples flexsn_gpu_arrays)
else()
  flexsn_left_out("the example gpu_arrays" "package not found: CUDAToolkit")
endif()
add_test(NAME demo COMMAND flexsn_demo)
add_test(NAME readme COMMAND flexsn_readme)
set_tests_properties(demo readme PROPERTIES LABELS null)

if(FLEXSN_HAVE_LLVM)
  flexsn_executable(flexsn_raw_arrays
    examples/raw_arrays.cpp)
  add_test(NAME raw_arrays COMMAND flexsn_raw_arrays)
  set_tests_properties(raw_arrays PROPERTIES LABELS cpu
    ENVIRONMENT FLEXSN_CACHE_DIR=${PROJECT_BINARY_DIR}/kernel_cache)
endif()

set(beside "the tests beside other copies of LLVM")
if(NOT FLEXSN_HAVE_LLVM)
  flexsn_left_out("${beside}" "CPU kernels are not built")
elseif(NOT FLEXSN_LLVM_HIDDEN)
  flexsn_left_out("${beside}" "LLVM is a shared library here, which nothing can hide")
elseif(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  flexsn_left_out("${beside}" "Python cannot load a library with sanitizers")
else()
  add_library(flexsn_beside MODULE
    tests/beside/library.cpp)
  target_link_libraries(flexsn_beside PRIVATE flexsn::flexsn flexsn_flags)
  target_compile_options(flexsn_beside PRIVATE -fvisibility=hidden)
  target_link_options(flexsn_beside PRIVATE -Wl,--exclude-libs,ALL)
  foreach(shown flexsn_llvm:compile_object flexsn_beside:flexsn_beside)
    string(REPLACE ":" ";" shown ${shown})
    list(GET shown 0 library)
    list(GET shown 1 symbol)
    add_test(NAME llvm_is_hidden.${library} COMMAND ${CMAKE_COMMAND}
      -D NM=${CMAKE_NM} -D LIBRARY=$<TARGET_FILE:${library}> -D SHOWN=${symbol}
      -P ${PROJECT_SOURCE_DIR}/tests/beside/hidden.cmake)
    set_tests_properties(llvm_is_hidden.${library} PROPERTIES LABELS cpu)
  endforeach()
  if(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    add_test(NAME beside_llvm
      COMMAND ${python} ${PROJECT_SOURCE_DIR}/tests/beside/run.py $<TARGET_FILE:flexsn_beside>)
    set_tests_properties(beside_llvm PROPERTIES LABELS cpu TIMEOUT 600 COST 50 SKIP_RETURN_CODE 77)
  else()
    flexsn_left_out("flexsn beside torch and triton" "there is no .venv; tools/venv.sh makes it")
  endif()
endif()

# Tests compile longer than they run. The flag is what ccache needs to know a header that is compiled already.
set(tests_compile_quickly $<$<CONFIG:RelWithDebInfo>:-O0> $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)

find_package(GTest QUIET)
if(GTest_FOUND)
  flexsn_executable(flexsn_tests
    tests/accuracy.cpp
    tests/accuracy_test.cpp
    tests/ops_test.cpp
    tests/simplify_test.cpp
    tests/random_graph.cpp
    tests/random_test.cpp
    tests/text_test.cpp
    tests/error_test.cpp
    tests/verify_test.cpp
    tests/trace_test.cpp
    tests/grad_test.cpp
    tests/plan_test.cpp
    tests/plan_random_test.cpp
    tests/kernel_test.cpp
    tests/kernel_limits_test.cpp
    tests/store_test.cpp
    tests/interpret_test.cpp
    tests/run_test.cpp
    tests/neurons_test.cpp
    tests/surrogates_test.cpp
    tests/neurons_page_test.cpp
    tests/docs_test.cpp
    tests/digest_test.cpp)
  target_include_directories(flexsn_tests PRIVATE src)
  target_compile_definitions(flexsn_tests PRIVATE FLEXSN_TESTS_DIR="${PROJECT_SOURCE_DIR}/tests")
  target_compile_options(flexsn_tests PRIVATE ${tests_compile_quickly})
  target_precompile_headers(flexsn_tests PRIVATE <gtest/gtest.h> <algorithm> <filesystem> <fstream> <functional>)
  set_source_files_properties(tests/accuracy.cpp tests/random_graph.cpp tests/digest_test.cpp  # these run long
    tests/neurons_test.cpp PROPERTIES COMPILE_OPTIONS -O1 SKIP_PRECOMPILE_HEADERS ON)
  target_link_libraries(flexsn_tests PRIVATE GTest::gtest_main)

  if(FLEXSN_HAVE_LLVM)
    target_sources(flexsn_tests PRIVATE
      tests/cpu_kernel_test.cpp)
    target_include_directories(flexsn_tests PRIVATE cpu)
    set(cross aarch64)
    if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
      set(cross x86_64)
    endif()
    find_program(FLEXSN_CROSS_CC ${cross}-linux-gnu-gcc)
    find_program(FLEXSN_QEMU qemu-${cross})
    set(cross_works FALSE)
    if(FLEXSN_CROSS_CC AND FLEXSN_QEMU)  # the compiler comes without its C library
      execute_process(COMMAND ${FLEXSN_CROSS_CC} -E -include stdio.h -x c /dev/null
        RESULT_VARIABLE cross_fails OUTPUT_QUIET ERROR_QUIET)
      if(cross_fails EQUAL 0)
        set(cross_works TRUE)
      endif()
    endif()
    if(cross_works)
      target_sources(flexsn_tests PRIVATE
        tests/cpu_cross_test.cpp)
      target_compile_definitions(flexsn_tests PRIVATE
        FLEXSN_CROSS_CC="${FLEXSN_CROSS_CC}" FLEXSN_QEMU="${FLEXSN_QEMU}")
    else()
      flexsn_left_out("the test of CPU kernels on ${cross}" "not found: ${cross}-linux-gnu-gcc and its C library, qemu-${cross}")
    endif()
  endif()

  # The CUDA text without a GPU: on the host, and through NVRTC.
  target_sources(flexsn_tests PRIVATE
    tests/cuda_modules.cpp
    tests/cuda_shape_test.cpp
    tests/cuda_text_test.cpp
    tests/cuda_nvrtc_test.cpp)
  target_link_libraries(flexsn_tests PRIVATE ${CMAKE_DL_LIBS})
  file(GLOB nvrtc ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.*)
  if(nvrtc)
    list(SORT nvrtc COMPARE NATURAL ORDER DESCENDING)
    list(GET nvrtc 0 nvrtc)
  endif()
  target_compile_definitions(flexsn_tests PRIVATE
    FLEXSN_CXX="${CMAKE_CXX_COMPILER}" FLEXSN_NVRTC_LIBRARY="${nvrtc}")

  # CUDA kernels without a GPU: a driver and an NVRTC that pretend, and run what they compile on the host.
  add_library(flexsn_fake_cuda MODULE
    tests/cuda_fake/fake.cpp
    tests/cuda_fake/host_code.cpp)
  target_compile_features(flexsn_fake_cuda PRIVATE cxx_std_20)
  target_compile_definitions(flexsn_fake_cuda PRIVATE
    FLEXSN_TESTS_DIR="${PROJECT_SOURCE_DIR}/tests" FLEXSN_CXX="${CMAKE_CXX_COMPILER}")
  target_link_libraries(flexsn_fake_cuda PRIVATE flexsn_flags ${CMAKE_DL_LIBS})
  target_sources(flexsn_tests PRIVATE
    tests/background_test.cpp
    tests/cuda_fake_test.cpp
    tests/cuda_prepare_test.cpp
    tests/cuda_kernel_test.cpp
    tests/cuda_rows_test.cpp
    tests/cuda_run_test.cpp
    tests/cuda_size_test.cpp)
  target_include_directories(flexsn_tests PRIVATE cuda)
  target_compile_definitions(flexsn_tests PRIVATE FLEXSN_FAKE_CUDA="$<TARGET_FILE:flexsn_fake_cuda>")
  add_dependencies(flexsn_tests flexsn_fake_cuda)
  add_test(NAME cuda_on_the_host COMMAND flexsn_tests "--gtest_filter=CudaKernels.*:CudaRuns.*:CudaSizes.*:Shard/Cuda*.HaveTheInterpretersBits/0")
  set(fake $<TARGET_FILE:flexsn_fake_cuda>)
  set_tests_properties(cuda_on_the_host PROPERTIES LABELS null TIMEOUT 600 COST 20 ENVIRONMENT
    "FLEXSN_CUDA_DRIVER=${fake};FLEXSN_NVRTC=${fake};FLEXSN_FAKE_RUNS=1;FLEXSN_CACHE=0")

  # Random neurons through every stage and backend; `make fuzz` runs it for longer.
  add_library(flexsn_differential_parts OBJECT
    fuzz/differential_case.cpp
    fuzz/differential_child.cpp
    fuzz/differential_shrink.cpp
    fuzz/differential_stages.cpp
    fuzz/differential_worker.cpp)
  target_include_directories(flexsn_differential_parts PUBLIC src tests fuzz)
  target_link_libraries(flexsn_differential_parts PUBLIC flexsn::flexsn flexsn_flags)
  target_compile_options(flexsn_differential_parts PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  target_sources(flexsn_tests PRIVATE
    tests/differential_test.cpp)
  target_link_libraries(flexsn_tests PRIVATE flexsn_differential_parts)
  flexsn_executable(flexsn_differential
    fuzz/differential.cpp
    tests/random_graph.cpp)
  target_link_libraries(flexsn_differential PRIVATE flexsn_differential_parts)
  target_compile_definitions(flexsn_differential PRIVATE
    FLEXSN_PYTHON="${python}" FLEXSN_BACKENDS_SCRIPT="${PROJECT_SOURCE_DIR}/fuzz/backends.py"
    FLEXSN_FAKE_CUDA="$<TARGET_FILE:flexsn_fake_cuda>")
  add_dependencies(flexsn_differential flexsn_fake_cuda)
  add_test(NAME differential_quick COMMAND flexsn_differential
    --seed 1 --count 100 --stages text,passes,plans,chunks,cpu,cuda/50)
  set_tests_properties(differential_quick PROPERTIES LABELS null TIMEOUT 600)

  if(TARGET flexsn_cli)
    target_sources(flexsn_tests PRIVATE
      tests/cli_test.cpp)
    target_compile_definitions(flexsn_tests PRIVATE FLEXSN_CLI_PATH="$<TARGET_FILE:flexsn_cli>")
    target_link_libraries(flexsn_tests PRIVATE nlohmann_json::nlohmann_json)
    add_dependencies(flexsn_tests flexsn_cli)
  else()
    flexsn_left_out("the tests of the command line" "flexsn_cli is not built")
  endif()

  find_path(FLEXSN_MPFR_INCLUDE mpfr.h)
  find_path(FLEXSN_GMP_INCLUDE gmp.h)
  find_library(FLEXSN_MPFR_LIBRARY mpfr)
  find_library(FLEXSN_GMP_LIBRARY gmp)
  if(FLEXSN_MPFR_INCLUDE AND FLEXSN_GMP_INCLUDE AND FLEXSN_MPFR_LIBRARY AND FLEXSN_GMP_LIBRARY)
    target_compile_definitions(flexsn_tests PRIVATE FLEXSN_HAVE_MPFR)
    target_include_directories(flexsn_tests SYSTEM PRIVATE ${FLEXSN_MPFR_INCLUDE} ${FLEXSN_GMP_INCLUDE})
    target_link_libraries(flexsn_tests PRIVATE ${FLEXSN_MPFR_LIBRARY} ${FLEXSN_GMP_LIBRARY})
  else()
    flexsn_left_out("the f64 accuracy tests" "package not found: MPFR with GMP")
  endif()

  # What threads share, alone: the thread sanitizer's build makes nothing else (make test-tsan).
  if(FLEXSN_HAVE_LLVM)
    flexsn_executable(flexsn_concurrency_tests
      tests/concurrency_test.cpp
      torch/registry.cpp
      torch/neuron.cpp)
    target_include_directories(flexsn_concurrency_tests PRIVATE src cuda torch tests)
    target_compile_options(flexsn_concurrency_tests PRIVATE ${tests_compile_quickly})
    target_link_libraries(flexsn_concurrency_tests PRIVATE GTest::gtest_main ${CMAKE_DL_LIBS})
    target_compile_definitions(flexsn_concurrency_tests PRIVATE
      FLEXSN_FAKE_CUDA="$<TARGET_FILE:flexsn_fake_cuda>")
    add_dependencies(flexsn_concurrency_tests flexsn_fake_cuda)
    add_test(NAME concurrency COMMAND flexsn_concurrency_tests)
    set_tests_properties(concurrency PROPERTIES LABELS cpu TIMEOUT 600)

    # Memory runs out by an operator new of its own.
    flexsn_executable(flexsn_fault_tests
      tests/fault_test.cpp
      tests/fault_memory_test.cpp)
    target_include_directories(flexsn_fault_tests PRIVATE src cpu cuda)
    target_link_libraries(flexsn_fault_tests PRIVATE GTest::gtest_main ${CMAKE_DL_LIBS})
    target_compile_definitions(flexsn_fault_tests PRIVATE FLEXSN_FAKE_CUDA="$<TARGET_FILE:flexsn_fake_cuda>")
    add_dependencies(flexsn_fault_tests flexsn_fake_cuda)
    add_test(NAME faults COMMAND flexsn_fault_tests)
    set_tests_properties(faults PROPERTIES LABELS cpu TIMEOUT 600)
  else()
    flexsn_left_out("flexsn_concurrency_tests and flexsn_fault_tests" "CPU kernels are not built")
  endif()

  include(GoogleTest)
  # Kernels that tests compile are kept apart from the user's own.
  set(nvrtc_folder "")
  if(nvrtc AND CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # a sanitizer's dlopen finds no library beside the caller's
    cmake_path(GET nvrtc PARENT_PATH nvrtc_folder)
    set(nvrtc_folder ENVIRONMENT_MODIFICATION LD_LIBRARY_PATH=path_list_prepend:${nvrtc_folder})
  endif()
  set(tests_environment FLEXSN_CACHE_DIR=${PROJECT_BINARY_DIR}/kernel_cache)
  gtest_discover_tests(flexsn_tests TEST_FILTER -Rows/*:Identities/* DISCOVERY_TIMEOUT 120
    PROPERTIES LABELS null TIMEOUT 600 ${nvrtc_folder} ENVIRONMENT "${tests_environment}")
  # A row takes less time than a process takes to start, and its kernels are compiled quickly.
  add_test(NAME rows COMMAND flexsn_tests --gtest_brief=1 --gtest_filter=Rows/*:Identities/*)
  set_tests_properties(rows PROPERTIES LABELS null TIMEOUT 1200 COST 30
    ENVIRONMENT "${tests_environment};FLEXSN_OPTIMIZE=0")
else()
  flexsn_left_out("flexsn_tests" "package not found: GTest")
endif()

if(FLEXSN_HAVE_TORCH)
  flexsn_executable(flexsn_train_libtorch
    examples/train_libtorch.cpp)
  target_link_libraries(flexsn_train_libtorch PRIVATE flexsn::torch)
  set_target_properties(flexsn_train_libtorch PROPERTIES EXCLUDE_FROM_ALL ON)  # torch_package builds and runs it
  add_test(NAME torch_shows_its_header_only COMMAND ${CMAKE_COMMAND}
    -D NM=${CMAKE_NM} -D LIBRARY=$<TARGET_FILE:flexsn_torch>
    -P ${PROJECT_SOURCE_DIR}/tests/torch_package/hidden.cmake)
  set_tests_properties(torch_shows_its_header_only PROPERTIES LABELS torch)
  if(GTest_FOUND)
    # The objects, not the library: tests see what it hides. One group, as torch's headers take longest.
    flexsn_executable(flexsn_torch_tests
      tests/torch_memory_test.cpp
      tests/torch_module_test.cpp
      tests/torch_scan_test.cpp)
    set_target_properties(flexsn_torch_tests PROPERTIES UNITY_BUILD ON)
    target_sources(flexsn_torch_tests PRIVATE $<TARGET_OBJECTS:flexsn_torch>)
    target_include_directories(flexsn_torch_tests PRIVATE src torch)
    target_link_options(flexsn_torch_tests PRIVATE -fopenmp)
    target_compile_options(flexsn_torch_tests PRIVATE ${tests_compile_quickly})
    target_link_libraries(flexsn_torch_tests PRIVATE flexsn_libtorch GTest::gtest_main)
    target_compile_definitions(flexsn_torch_tests PRIVATE
      FLEXSN_STATE_DICT_SCRIPT="PYTHONPATH='${PROJECT_SOURCE_DIR}/python' FLEXSN_LIBRARY='$<TARGET_FILE:flexsn_torch>' '${python}' '${PROJECT_SOURCE_DIR}/tests/torch_state_dict.py'")
    add_dependencies(flexsn_torch_tests flexsn_torch)
    gtest_discover_tests(flexsn_torch_tests DISCOVERY_TIMEOUT 120 PROPERTIES LABELS torch TIMEOUT 600
      ENVIRONMENT "${tests_environment}")
  endif()
else()
  flexsn_left_out("the libtorch example and its tests" "the PyTorch operators are not built")
endif()

set(python_tests "the tests of the Python package")
if(NOT FLEXSN_HAVE_TORCH)
  flexsn_left_out("${python_tests}" "the PyTorch operators are not built")
elseif(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  flexsn_left_out("${python_tests}" "Python cannot load a library with sanitizers")
else()
  execute_process(COMMAND ${python} -c "import hypothesis, numpy, pytest" RESULT_VARIABLE failed ERROR_QUIET)
  if(failed)
    flexsn_left_out("${python_tests}" "${python} has not all of hypothesis, numpy and pytest")
  else()
    flexsn_executable(flexsn_neuron_texts
      tests/neuron_texts.cpp
      tests/random_graph.cpp)
    target_include_directories(flexsn_neuron_texts PRIVATE src)
    if(TARGET flexsn_differential)
      add_test(NAME differential_python COMMAND flexsn_differential
        --seed 1 --count 40 --stages torch,triton/2)
      set_tests_properties(differential_python PROPERTIES LABELS torch TIMEOUT 600
        ENVIRONMENT FLEXSN_LIBRARY=$<TARGET_FILE:flexsn_torch>)
    endif()
    # A process takes seconds to import torch and its compilers, so files of a kind share one. They take
    # longest and start first. Kernels are tested in C++: here they only need to be there soon.
    function(flexsn_python_tests group)
      list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/tests/python/test_ OUTPUT_VARIABLE files)
      list(TRANSFORM files APPEND .py)
      add_test(NAME python.${group} COMMAND ${python} -m pytest -q -p no:cacheprovider ${files})
      set_tests_properties(python.${group} PROPERTIES LABELS torch TIMEOUT 1200 COST 100 ENVIRONMENT
        "PYTHONPATH=${PROJECT_SOURCE_DIR}/python;PYTHONDONTWRITEBYTECODE=;FLEXSN_LIBRARY=$<TARGET_FILE:flexsn_torch>;FLEXSN_NEURON_TEXTS=$<TARGET_FILE:flexsn_neuron_texts>;FLEXSN_CACHE_DIR=${PROJECT_BINARY_DIR}/kernel_cache;FLEXSN_OPTIMIZE=0")
    endfunction()
    flexsn_python_tests(modules
      bad_cores
      bad_use
      base
      calls
      compat
      flexsn_kernel
      flexsn_module
      flexsn_use
      functional
      handles
      limits
      scan)
    flexsn_python_tests(tracing
      captures
      changes
      connections
      fused_property
      guards
      hidden_reads
      import
      import_errors
      reach
      surroundings
      user_functions)
    flexsn_python_tests(library
      cuda
      neurons
      neurons_by_name
      neurons_errors
      neurons_parameters
      neurons_spikingjelly
      operators
      peers_bugs
      surrogates
      triton_gpu)
    flexsn_python_tests(compiled
      compile
      scan_operator
      spikingjelly)
    flexsn_python_tests(inspection
      bench
      inspect
      main
      plot)
    flexsn_python_tests(pages
      demo
      examples
      guide
      package
      readme)
    flexsn_python_tests(processes
      distributed
      faults
      processes
      reproducible)
    flexsn_python_tests(triton
      code_cache
      triton_backend
      triton_compat
      triton_export
      triton_python)
  endif()
endif()

find_package(benchmark CONFIG QUIET)
if(benchmark_FOUND)
  flexsn_executable(flexsn_bench
    bench/bench.cpp)
  target_include_directories(flexsn_bench PRIVATE src)
  target_link_libraries(flexsn_bench PRIVATE benchmark::benchmark_main)
else()
  flexsn_left_out("flexsn_bench" "package not found: benchmark")
endif()

if(FLEXSN_HAVE_LLVM)
  # All 2^32 operands take minutes for each function; every 257th is a test of every day.
  flexsn_executable(flexsn_exhaustive
    tests/exhaustive.cpp
    tests/accuracy.cpp)
  target_include_directories(flexsn_exhaustive PRIVATE src cpu)
  add_test(NAME exhaustive_quick COMMAND flexsn_exhaustive --quick)
  set_tests_properties(exhaustive_quick PROPERTIES LABELS null TIMEOUT 600)
  # What kernels are measured against is compiled for this machine, without our flags.
  add_library(flexsn_plain_loops OBJECT
    bench/plain_loops.cpp)
  target_compile_features(flexsn_plain_loops PRIVATE cxx_std_20)
  target_compile_options(flexsn_plain_loops PRIVATE -O3 -march=native -fno-trapping-math)
  flexsn_executable(flexsn_cpu_bench
    bench/cpu_bench.cpp)
  target_include_directories(flexsn_cpu_bench PRIVATE src)
  target_link_libraries(flexsn_cpu_bench PRIVATE flexsn_plain_loops)
else()
  flexsn_left_out("flexsn_cpu_bench" "built without LLVM")
endif()
add_custom_target(flexsn_benchmarks)
foreach(name flexsn_bench flexsn_cpu_bench)
  if(TARGET ${name})
    add_dependencies(flexsn_benchmarks ${name})
  endif()
endforeach()

# What a user runs: built by `make demo`, which need not wait for the tests.
add_custom_target(flexsn_programs DEPENDS flexsn_demo flexsn_demo_neuron)
foreach(name flexsn_cli flexsn_torch flexsn_demo_digits)
  if(TARGET ${name})
    add_dependencies(flexsn_programs ${name})
  endif()
endforeach()
