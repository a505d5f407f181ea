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

void Ties::sum_gradients() const {
  const torch::NoGradGuard no_grad;
  for (const TiedParameter& tied : model_.ties()) {
    if (!tied.copies.front().requires_grad()) {
      continue;
    }
    const at::Tensor& first = tied.copies.front();
    const bool narrow = first.scalar_type() == at::kBFloat16 || first.scalar_type() == at::kHalf; // their gradients may be fp32
    at::Tensor sum = torch::zeros(first.sizes(), first.options().dtype(narrow ? at::kFloat : first.scalar_type()));
    for (const at::Tensor& copy : tied.copies) {
      if (copy.grad().defined()) {
        sum.add_(copy.grad());
      }
    }
    if (const auto group = groups_.find(tied.key); group != groups_.end()) {
      group->second.all_reduce(sum, comm::ReduceOp::sum, tied.name).wait();
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
