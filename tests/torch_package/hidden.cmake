# Checks that of flexsn's own names the library shows only those that include/flexsn/torch.h declares.
execute_process(COMMAND ${NM} -D -C --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
if(NOT symbols MATCHES "flexsn::nn::reset_net")
  message(FATAL_ERROR "${LIBRARY} should show flexsn::nn::reset_net, but its dynamic table is:\n${symbols}")
endif()
string(REPLACE "[abi:cxx11]" "" symbols "${symbols}")  # a bracket would join items of a list
string(REGEX MATCHALL "[A-Za-z] (vtable for |typeinfo for |typeinfo name for |VTT for )?flexsn::[^\n]*" found
       "${symbols}")
set(classes "MemoryModule|FlexSNImpl|FlexSNKernel")
string(CONCAT functions "reset_net|detach_net|set_step_mode|set_backend|eager_scan|eager_scan_final_state|"
              "state_dict|load_state_dict|read_state_dict|write_state_dict")
list(FILTER found EXCLUDE REGEX
  "^[A-Z] (flexsn::nn::((${classes})::|(${functions})\\()|.* for flexsn::nn::(${classes})$)")
list(LENGTH found count)
if(count)
  list(JOIN found "\n" found)
  message(FATAL_ERROR "${LIBRARY} shows ${count} names of flexsn that torch.h does not declare:\n${found}")
endif()
message("${LIBRARY}: of flexsn, only what torch.h declares")
