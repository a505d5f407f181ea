#pragma once

#include <trireme/comm/backend.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <exception>

namespace trireme::comm {

// Shared by the backends over c10d's process groups (gloo, nccl).

/// c10d's value for `op`.
c10d::ReduceOp::RedOpType c10d_op(ReduceOp op);

/// Converts an exception of c10d. Deadlines and broken connections have the same types; only the text distinguishes
/// them.
Trouble trouble_of(const std::exception_ptr& error);

} // namespace trireme::comm
