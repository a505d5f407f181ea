#pragma once

#include <trireme/kernels/optimizer_args.h>
#include <trireme/optim/optimizer.h>

#include <initializer_list>
#include <string>

namespace trireme::optim {

/// Throws Error naming the fault unless the arrays of `shard` are contiguous, of one length, on one device, and of the
/// types in ShardStep. Also checks that it has the states of `optimizer` and a step of at least 1.
void check_shard(const ShardStep& shard, const Optimizer& optimizer);

/// Throws Error unless `tensor` is [n], contiguous, on `device`, and of one of these types.
void check_flat(const at::Tensor& tensor, const std::string& what, std::initializer_list<at::ScalarType> types,
                at::Device device);

/// Throws InputError("optim", "<optimizer>: <option> must be <range>, got <value>") unless `holds`.
void check_option(bool holds, const char* optimizer, const char* option, const char* range, double value);

/// The kernels' name for f32, bf16, f16 or uint8 tensors.
kernels::Element element_of(at::ScalarType type);

/// Sets the arguments that all kernels share, from a checked shard.
void set_arrays(kernels::StepArgs& args, const ShardStep& shard);
kernels::StateArray state_array(const ShardStep& shard, size_t i);

} // namespace trireme::optim
