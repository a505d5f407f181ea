#include <trireme/parallel/pipeline/ties.h>

#include <trireme/base/error.h>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>

namespace trireme::pipeline {

Ties::Ties(const comm::Group& pipe, const PipelineModule& model) : model_(model) {
  for (const auto& [key, stages] : model.tie_owners()) {
    const comm::Group group = pipe.subgroup(stages, concat("tie ", key));
    if (std::find(stages.begin(), stages.end(), pipe.rank()) != stages.end()) {
      groups_.emplace(key, group);
    }
  }
}

bool Ties::Uses::any(size_t i) {
  if (sum.defined()) {
    work.wait();
    return sum[static_cast<int64_t>(i)].item<int64_t>() > 0;
  }
  return counts[i] > 0;
}

void Ties::broadcast_weights() const {
  const torch::NoGradGuard no_grad;
  for (const TiedParameter& tied : model_.ties()) {
    at::Tensor first = tied.copies.front().detach();
    if (const auto group = groups_.find(tied.key); group != groups_.end()) {
      at::Tensor whole = first.contiguous();
      group->second.broadcast(whole, 0, tied.name).wait();
      first.copy_(whole);
    }
    for (const at::Tensor& copy : tied.copies) {
      copy.detach().copy_(first);
    }
  }
}

// For each key and each of its parameters in order: the number of copies with a gradient. Sends these small messages
// before the sums.
std::map<std::string, Ties::Uses> Ties::count_uses() const {
  std::map<std::string, Uses> uses;
  for (const TiedParameter& tied : model_.ties()) {
    if (tied.copies.front().requires_grad()) {
      uses[tied.key].counts.push_back(std::count_if(tied.copies.begin(), tied.copies.end(),
                                                    [](const at::Tensor& copy) { return copy.grad().defined(); }));
    }
  }
  for (auto& [key, of_key] : uses) {
    if (const auto group = groups_.find(key); group != groups_.end()) {
      of_key.sum = torch::tensor(of_key.counts, torch::kInt64);
      of_key.work = group->second.all_reduce(of_key.sum, comm::ReduceOp::sum, concat("uses of tie ", key));
    }
  }
  return uses;
}

void Ties::sum_gradients() const {
  const torch::NoGradGuard no_grad;
  std::map<std::string, Uses> uses = count_uses();
  std::map<std::string, size_t> next;
  for (const TiedParameter& tied : model_.ties()) {
    if (!tied.copies.front().requires_grad()) {
      continue;
    }
    const at::Tensor& first = tied.copies.front();
    const bool narrow =
        first.scalar_type() == at::kBFloat16 || first.scalar_type() == at::kHalf; // their gradients may be fp32
    at::Tensor sum = torch::zeros(first.sizes(), first.options().dtype(narrow ? at::kFloat : first.scalar_type()));
    for (const at::Tensor& copy : tied.copies) {
      if (copy.grad().defined()) {
        sum.add_(copy.grad());
      }
    }
    if (const auto group = groups_.find(tied.key); group != groups_.end()) {
      group->second.all_reduce(sum, comm::ReduceOp::sum, tied.name).wait();
    }
    if (!uses.at(tied.key).any(next[tied.key]++)) {
      continue; // without a gradient it is not stepped, as in one process
    }
    for (const at::Tensor& copy : tied.copies) {
      if (copy.grad().defined()) {
        copy.grad().copy_(sum);
      } else {
        copy.mutable_grad() = tied.copies.size() > 1 ? sum.clone() : sum; // rounded once, by the rank that steps it
      }
    }
  }
}

} // namespace trireme::pipeline
