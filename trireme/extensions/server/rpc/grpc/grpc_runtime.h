#pragma once

#include <trireme/extensions/server/rpc/grpc/grpc_functions.h>

namespace trireme::rpc::grpc {

/// Returns the module's functions; the first call loads it. Errors: InputError, which tells what to install.
const Functions& functions();

} // namespace trireme::rpc::grpc
