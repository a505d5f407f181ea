#include <trireme/extensions/horovod/elastic/averaging_state.h>

#include <trireme/extensions/horovod/elastic/module_tensors.h>
#include <trireme/extensions/horovod/horovod.h>
#include <trireme/extensions/horovod/optimizer_bytes.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace trireme::horovod::elastic {

void AveragingState::add(const std::string& name, torch::nn::Module& module) {
  modules_.emplace_back(name, &module);
}
void AveragingState::add(const std::string&, torch::optim::Optimizer& optimizer) {
  optimizers_.push_back(&optimizer);
}

void AveragingState::average() {
  mean(true, size());
  check_host_updates();
}

void AveragingState::mean(bool mine, int64_t counted) {
  std::vector<std::pair<at::Tensor, Handle>> sums;
  for (const auto& [name, tensor] : tensors_of(modules_)) {
    if (!tensor.is_floating_point()) {
      sums.emplace_back(tensor, broadcast_async(tensor, 0, "average." + name));
      continue;
    }
    const at::Tensor value = tensor.to(at::promote_types(tensor.scalar_type(), at::kFloat));
    sums.emplace_back(
        tensor,
        allreduce_async(mine ? value : at::zeros_like(value),
                        {.name = "average." + name, .op = Op::sum, .postscale = 1 / static_cast<double>(counted)}));
  }
  std::vector<at::Tensor> results;
  for (const auto& [tensor, sum] : sums) {
    results.push_back(synchronize(sum));
  }
  for (size_t i = 0; i < sums.size(); ++i) { // all or none: a lost rank must not leave half of a mean
    sums[i].first.copy_(results[i]);
  }
}

void AveragingState::sync() {
  ObjectState::sync();
  const auto counted =
      allreduce(at::full({1}, trained_ ? 1 : 0, at::kLong), {.name = "replicas that have trained", .op = Op::sum})
          .item<int64_t>();
  const bool has_states = trained_ || rank() == 0;
  mean(counted == 0 ? rank() == 0 : trained_, std::max<int64_t>(1, counted));
  if (counted < size()) {
    for (torch::optim::Optimizer* const optimizer : optimizers_) {
      const std::string bytes = broadcast_bytes(rank() == 0 ? bytes_of(*optimizer) : "", 0, "the optimizer's state");
      if (!has_states) {
        load_bytes(*optimizer, bytes);
      }
    }
  }
  trained_ = true;
}

} // namespace trireme::horovod::elastic
