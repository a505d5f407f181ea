#include <trireme/precision/grad_scaler.h>

#include <trireme/base/error.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace trireme::precision {
namespace {

using Kind = std::pair<at::Device, at::ScalarType>;

struct ByKind {
  bool operator()(const Kind& a, const Kind& b) const {
    return std::tuple(a.first.type(), a.first.index(), a.second) <
           std::tuple(b.first.type(), b.first.index(), b.second);
  }
};

// ATen unscales lists of one type on one device.
std::map<Kind, std::vector<at::Tensor>, ByKind> gradients_of(torch::optim::Optimizer& optimizer) {
  std::map<Kind, std::vector<at::Tensor>, ByKind> out;
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& grad = parameter.grad();
      if (!grad.defined()) {
        continue;
      }
      if (grad.scalar_type() == at::kHalf) {
        throw InputError("precision",
                         concat("GradScaler: a gradient of shape ", grad.sizes(),
                                " is fp16, so the optimizer would lose small updates"),
                         "Keep the parameters in fp32 and run forward under Autocast(Type::fp16).");
      }
      const at::Tensor values = grad.is_sparse() ? grad._values() : grad;
      out[{values.device(), values.scalar_type()}].push_back(values);
    }
  }
  return out;
}

void require(bool holds, const char* name, const char* range, double value) {
  if (!holds) {
    throw InputError("precision", concat("GradScaler: ", name, " must be ", range, ", got ", value));
  }
}

float checked_scale(const char* name, double scale) {
  const auto rounded = static_cast<float>(scale);
  require(std::isfinite(rounded) && rounded > 0, name, "a positive number that fp32 has", scale);
  return rounded;
}

GradScalerOptions checked(const GradScalerOptions& options) {
  require(options.growth_factor > 1 && std::isfinite(options.growth_factor), "growth_factor", "> 1",
          options.growth_factor);
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor", "between 0 and 1",
          options.backoff_factor);
  require(options.growth_interval >= 1, "growth_interval", ">= 1", static_cast<double>(options.growth_interval));
  return options;
}

} // namespace

bool GradScaler::Progress::found() {
  if (work) {
    work->wait();
    work.reset();
  }
  return flag.defined() && flag.item<float>() != 0;
}

GradScaler::GradScaler(const GradScalerOptions& options, comm::Group group)
    : options_(checked(options)), group_(std::move(group)), scale_(checked_scale("init_scale", options.init_scale)) {}

// Multiplies by a tensor: a number times a zero-dimensional fp16 loss would be fp16, where 65536 is infinite.
at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!options_.enabled) {
    return outputs;
  }
  has_scaled_ = true;
  return outputs * torch::full({}, scale_, outputs.options().dtype(torch::kFloat32).requires_grad(false));
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& output : outputs) {
    out.push_back(scale(output));
  }
  return out;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    return;
  }
  if (!has_scaled_) {
    throw Error("precision", "GradScaler: unscale_() or step() before scale()",
                "Call scaler.scale(loss).backward() first.");
  }
  const auto before = progress_.find(&optimizer);
  if (before != progress_.end()) {
    throw Error("precision",
                before->second.stepped ? "GradScaler: unscale_() after step()"
                                       : "GradScaler: unscale_() twice for one optimizer in one iteration",
                "Call unscale_(), step() and update() once an iteration, in this order.");
  }
  const torch::NoGradGuard no_grad;
  const auto gradients = gradients_of(optimizer);
  const auto inverse = static_cast<float>(1 / static_cast<double>(scale_));
  Progress progress;
  for (const auto& [kind, grads] : gradients) {
    const auto on_device = torch::TensorOptions(kind.first).dtype(torch::kFloat32);
    at::Tensor flag = torch::zeros({1}, on_device);
    at::_amp_foreach_non_finite_check_and_unscale_(grads, flag, torch::full({1}, inverse, on_device));
    progress.flag = progress.flag.defined() ? progress.flag.maximum(flag.to(progress.flag.device())) : flag;
  }
  if (group_.size() > 1) { // a rank without gradients takes part too
    progress.flag = progress.flag.defined() ? progress.flag : torch::zeros({1});
    progress.work = group_.all_reduce(progress.flag, comm::ReduceOp::max, "found inf");
  }
  progress_.emplace(&optimizer, std::move(progress));
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (progress_.count(&optimizer) == 0) {
    unscale_(optimizer);
  }
  Progress& progress = progress_.at(&optimizer);
  if (progress.stepped) {
    throw Error("precision", "GradScaler: step() twice for one optimizer in one iteration",
                "Call update() after each step().");
  }
  if (!progress.flag.defined()) {
    progress_.erase(&optimizer);
    throw Error("precision", "GradScaler: none of the optimizer's parameters has a gradient",
                "Call scaler.scale(loss).backward() before step().");
  }
  progress.stepped = true;
  if (progress.found()) {
    return false;
  }
  optimizer.step();
  return true;
}

void GradScaler::update() {
  if (!options_.enabled) {
    return;
  }
  if (progress_.empty()) {
    throw Error("precision", "GradScaler: update() without unscale_() or step() before it",
                "Call scaler.step(optimizer) first.");
  }
  bool found = false;
  for (auto& [optimizer, progress] : progress_) {
    found = progress.found() || found;
  }
  // Computes in double and rounds once: bit-equal to Python's, also for factors that are not powers of two.
  if (found) {
    scale_ = static_cast<float>(scale_ * options_.backoff_factor);
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    const auto grown = static_cast<float>(scale_ * options_.growth_factor);
    scale_ = std::isfinite(grown) ? grown : scale_;
    growth_tracker_ = 0;
  }
  progress_.clear();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) {
    return;
  }
  scale_ = checked_scale("the new scale", new_scale);
  for (auto& [optimizer, progress] : progress_) {
    progress.found(); // wait for every operation
  }
  progress_.clear();
}

double GradScaler::get_scale() const {
  return options_.enabled ? scale_ : 1;
}

void GradScaler::set_growth_factor(double factor) {
  GradScalerOptions options = options_;
  options.growth_factor = factor;
  options_ = checked(options);
}
void GradScaler::set_backoff_factor(double factor) {
  GradScalerOptions options = options_;
  options.backoff_factor = factor;
  options_ = checked(options);
}
void GradScaler::set_growth_interval(int64_t interval) {
  GradScalerOptions options = options_;
  options.growth_interval = interval;
  options_ = checked(options);
}

nlohmann::json GradScaler::state() const {
  if (!options_.enabled) {
    return nlohmann::json::object();
  }
  return {{"scale", static_cast<double>(scale_)},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"_growth_tracker", growth_tracker_}};
}

void GradScaler::load_state(const nlohmann::json& state) {
  if (!options_.enabled) {
    return;
  }
  try {
    if (state.empty()) {
      throw InputError("precision", "GradScaler: the saved state is empty",
                       "It was saved by a scaler with enabled = false.");
    }
    GradScalerOptions options = options_;
    options.init_scale = state.at("scale").get<double>();
    options.growth_factor = state.at("growth_factor").get<double>();
    options.backoff_factor = state.at("backoff_factor").get<double>();
    options.growth_interval = state.at("growth_interval").get<int64_t>();
    const float scale = checked_scale("scale", options.init_scale);
    const auto tracker = state.at("_growth_tracker").get<int64_t>();
    require(tracker >= 0, "_growth_tracker", ">= 0", static_cast<double>(tracker));
    options_ = checked(options);
    scale_ = scale;
    growth_tracker_ = tracker;
  } catch (const nlohmann::json::exception& error) {
    throw InputError("precision", concat("GradScaler: malformed saved state: ", state.dump()),
                     "Expected five numbers, named as in Python's state_dict().");
  }
}

} // namespace trireme::precision
