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

std::vector<kernels::StepScalars> FlatOptimizer::rows_at(double lr, std::optional<Betas> betas, int64_t step) const {
  std::vector<kernels::StepScalars> rows;
  for (const auto& [buffer, parameter] : groups_) {
    const ParameterOptions& options = shards_[buffer].options[parameter];
    rows.push_back(rule_->scalars({lr * options.lr_factor, options.weight_decay, step, betas, held_}));
  }
  return rows;
}

at::Tensor FlatOptimizer::step_scalars(double lr, std::optional<Betas> betas, int64_t step) const {
  const std::vector<kernels::StepScalars> rows = rows_at(lr, betas, step);
  const at::Tensor words = at::empty({std::ssize(rows), kernels::kStepScalars}, at::kInt);
  std::ranges::copy(rows, static_cast<kernels::StepScalars*>(words.mutable_data_ptr()));
  return words;
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
