#pragma once

#include <trireme/kernels/optimizer_args.h>
#include <trireme/optim/optimizer.h>

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace trireme::optim {

/// Throws Error naming the fault unless the arrays of `shard` are contiguous, of one length, on one device, and of the
/// types in ShardStep. Also checks that it has the states of `optimizer` and a step of at least 1.
void check_shard(const ShardStep& shard, const Optimizer& optimizer);

/// Throws Error unless `tensor` is [n], contiguous, on `device`, and of one of these types.
void check_flat(const at::Tensor& tensor, const std::string& what, std::initializer_list<at::ScalarType> types,
                at::Device device);

/// Throws InputError("optim", "<optimizer>: <option> must be <range>, got <value>") unless `holds`.
void check_option(bool holds, const char* optimizer, const char* option, const char* range, double value);

/// Checks lr and weight_decay, and betas and eps of an optimizer that has them. Errors: as check_option().
template <class Options>
void check_common_options(const char* optimizer, const Options& options) {
  check_option(options.lr >= 0, optimizer, "lr", "at least 0", options.lr);
  if constexpr (requires { options.beta1; }) {
    check_option(options.beta1 >= 0 && options.beta1 < 1, optimizer, "betas[0]", "in [0, 1)", options.beta1);
    check_option(options.beta2 >= 0 && options.beta2 < 1, optimizer, "betas[1]", "in [0, 1)", options.beta2);
  }
  if constexpr (requires { options.eps; }) {
    check_option(options.eps >= 0, optimizer, "eps", "at least 0", options.eps);
  }
  check_option(options.weight_decay >= 0, optimizer, "weight_decay", "at least 0", options.weight_decay);
}

/// The kernels' name for f32, bf16, f16 or uint8 tensors.
kernels::Element element_of(at::ScalarType type);

/// Sets the arguments that all kernels share, from a checked shard.
void set_arrays(kernels::StepArgs& args, const ShardStep& shard);
/// The shard's segments if they have rows, else one that has all elements.
struct Segments {
  std::vector<Segment> all;
  std::span<const Segment> given;
  std::span<const Segment> span() const { return all.empty() ? given : std::span<const Segment>(all); }
};
Segments segments_of(const ShardStep& shard);
kernels::StateArray state_array(const ShardStep& shard, size_t i);

} // namespace trireme::optim
