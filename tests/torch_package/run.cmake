# Installs the built tree into a prefix of its own, then builds and runs the example against it.
set(work ${BUILD}/torch_package)
set(ENV{DESTDIR})
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${work}/prefix)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build -G ${GENERATOR}
    -D CMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_CXX_FLAGS=${CXX_FLAGS}
    -D CMAKE_BUILD_TYPE=${CONFIG} -D CMAKE_PREFIX_PATH=${work}/prefix -D SOURCE=${SOURCE}
    -D CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0)  # it compiles longer than it runs
run(${CMAKE_COMMAND} --build ${work}/build --config ${CONFIG} --target run)
