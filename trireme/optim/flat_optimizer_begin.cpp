// The numbers of a step, by value or as rows of groups of parameters.
#include <trireme/optim/flat_optimizer.h>

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme::optim {

void FlatOptimizer::group(Shard& shard) {
  for (int64_t p = 0; p < std::ssize(shard.options); ++p) {
    const auto same = std::ranges::find_if(groups_, [&](const std::pair<int64_t, int64_t>& of) {
      return shards_[of.first].options[of.second] == shard.options[p];
    });
    shard.group.push_back(same - groups_.begin());
    if (same == groups_.end()) {
      groups_.emplace_back(&shard - shards_.data(), p);
    }
  }
}

at::Tensor FlatOptimizer::step_scalars(double lr, std::optional<Betas> betas, int64_t step) const {
  const at::Tensor rows = at::empty({std::ssize(groups_), kernels::kStepScalars}, at::kInt);
  auto* row = static_cast<kernels::StepScalars*>(rows.mutable_data_ptr());
  for (const auto& [buffer, parameter] : groups_) {
    const ParameterOptions& options = shards_[buffer].options[parameter];
    *row++ = rule_->scalars({lr * options.lr_factor, options.weight_decay, step, betas, held_});
  }
  return rows;
}

void FlatOptimizer::begin_step(double lr, std::optional<Betas> betas, double grad_scale, at::Tensor device_grad_scale,
                               at::Tensor device_scalars) {
  follow_first_values();
  ++steps_;
  lr_ = lr;
  betas_ = betas;
  grad_scale_ = grad_scale;
  device_grad_scale_ = std::move(device_grad_scale);
  device_scalars_ = std::move(device_scalars);
  prepared_ = false;
  for (Shard& shard : shards_) {
    shard.unused.clear();
    shard.rows.clear();
    shard.gradients.clear();
  }
}

bool FlatOptimizer::set_lr_factors(std::span<const double> of_group) {
  bool changed = false;
  for (Shard& shard : shards_) {
    for (ParameterOptions& options : shard.options) {
      if (options.group >= 0 && options.group < std::ssize(of_group)) {
        changed = changed || options.lr_factor != of_group[options.group];
        options.lr_factor = of_group[options.group];
      }
    }
  }
  return changed;
}

} // namespace trireme::optim
