# run(command...) fails the test when the command does; its words are in `output`.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGV} failed:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_output expected)
  if(NOT output MATCHES "${expected}")
    message(FATAL_ERROR "\"${expected}\" is not in:\n${output}")
  endif()
endfunction()
