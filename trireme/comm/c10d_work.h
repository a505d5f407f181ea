#pragma once

#include <trireme/comm/backend.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <exception>

namespace trireme::comm {

// What the backends over c10d's process groups (gloo, nccl) share.

/// c10d's name of `op`.
c10d::ReduceOp::RedOpType c10d_op(ReduceOp op);

/// The Trouble behind an exception that c10d threw. It reports deadlines and broken connections with the same types;
/// only the text tells them apart.
Trouble trouble_of(const std::exception_ptr& error);

} // namespace trireme::comm
