#pragma once

#include <trireme/extensions/server/rpc/grpc/grpc_functions.h>

namespace trireme::rpc::grpc {

/// The module's functions; loads it with the first call. Errors: InputError, which says what to install.
const Functions& functions();

} // namespace trireme::rpc::grpc
