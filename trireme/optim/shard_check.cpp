#include <trireme/optim/shard_check.h>

#include <trireme/base/error.h>

namespace trireme::optim {

void check_flat(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.defined()) {
    throw Error("optim", concat(what, " is an undefined tensor, expected a flat fp32 array."));
  }
  if (tensor.dim() != 1 || tensor.scalar_type() != at::kFloat || !tensor.is_contiguous() || !tensor.device().is_cpu()) {
    throw Error(
        "optim",
        concat(
            what, " must be a contiguous fp32 array [n] in host memory, got ", tensor.scalar_type(), ' ', tensor.sizes(),
            " on ", tensor.device(), tensor.is_contiguous() ? "" : ", not contiguous", '.'),
        "Pass the flat buffer or a slice of it.");
  }
}

void check_shard(const ShardStep& shard, const char* optimizer, const std::vector<std::string>& state_names) {
  const std::string prefix = std::string(optimizer) + ": ";
  const auto check = [&](const at::Tensor& tensor, const std::string& name) {
    check_flat(tensor, prefix + name);
    if (tensor.numel() != shard.param.numel()) {
      throw Error(
          "optim",
          concat(prefix, name, " has ", tensor.numel(), " elements, the parameters have ", shard.param.numel(), '.'));
    }
  };
  check(shard.param, "param");
  check(shard.grad, "grad");
  if (shard.states.size() != state_names.size()) {
    throw Error("optim", concat(prefix, "needs ", state_names.size(), " states, got ", shard.states.size(), '.'));
  }
  for (size_t i = 0; i < state_names.size(); ++i) {
    check(shard.states[i], state_names[i]);
  }
  if (shard.step < 1) {
    throw Error("optim", concat(prefix, "steps count from 1, got ", shard.step, '.'));
  }
}

void check_option(bool holds, const char* optimizer, const char* option, const char* range, double value) {
  if (!holds) {
    throw InputError("optim", concat(optimizer, ": ", option, " must be ", range, ", got ", value, '.'));
  }
}

} // namespace trireme::optim
