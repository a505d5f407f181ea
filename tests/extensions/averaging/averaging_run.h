#pragma once

#include <tests/engine/small_run.h>

#include <trireme/config/averaging_options.h>
#include <trireme/models/gpt_layers.h>

#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme::engine {

using parallel::AveragingOptions;
using Outer = AveragingOptions::Outer;
using States = AveragingOptions::States;

inline constexpr int64_t kSamples = 48; // of a step
inline constexpr double kInnerLr = 0.05;
inline constexpr double kEps =
    1e-4; // of AdamW: the gradient of a bias of keys is nothing but rounding, which a small one would blow up

/// SGD without momentum, or AdamW; clipped at 0.5.
inline config::EngineConfig averaging_config(const AveragingOptions& averaging, bool adam = false,
                                             double clipping = 0.5) {
  config::EngineConfig config = small_config(kSamples, 1, clipping);
  if (!adam) {
    config.optimizer = optim::OptimizerOptions{.rule = optim::SgdOptions{.lr = kInnerLr}};
  } else {
    std::get<optim::AdamOptions>(config.optimizer->rule).eps = kEps;
  }
  config.averaging = averaging;
  return config;
}

/// A small GPT in one piece, or on several ranks, whose replicas average.
struct AveragingRun {
  models::Gpt model{nullptr};
  Initialized made;
  int64_t not_finite_in = -1; // this rank's loss in this step
  double weight = 1;          // of the loss

  AveragingRun(comm::World& world, const config::EngineConfig& config, int stages = 1, int tensor = 1,
               std::optional<at::Device> device = std::nullopt,
               const std::function<void(InitializeOptions&)>& more = {}) {
    InitializeOptions options;
    options.mesh = mesh::training_mesh(world.group(), {.pipe = stages, .tensor = tensor});
    options.device = device;
    models::ModelRanks ranks;
    ranks.tensor = {options.mesh->group(mesh::Axis::tensor), false};
    if (stages > 1) {
      pipeline::PipelineOptions how;
      how.stages = stages;
      options.pipeline = std::make_shared<pipeline::PipelineModule>(models::gpt_layers(small_gpt(), ranks),
                                                                    models::gpt_loss(small_gpt(), ranks), how);
    } else {
      model = models::Gpt(small_gpt(), ranks);
      options.model = model.ptr();
      options.loss = [this](const data::Batch& batch) {
        const at::Tensor loss = model->loss(batch.input(), batch.target());
        return made.engine && made.engine->global_steps() + 1 == not_finite_in ? loss * std::nan("") : loss * weight;
      };
    }
    options.config = config;
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    if (more) {
      more(options);
    }
    made = initialize(world, options);
  }
  Engine& engine() { return *made.engine; }
  double train(int steps) {
    double loss = 0;
    for (int i = 0; i < steps; ++i) {
      loss = engine().train_batch().item<double>();
    }
    return loss;
  }
  std::vector<at::Tensor> parameters() { return engine().module().parameters(); }
  std::vector<at::Tensor> copied_parameters() {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : parameters()) {
      copies.push_back(parameter.detach().clone());
    }
    return copies;
  }
};

/// The same with nothing but libtorch: all replicas in one process, each a model with an optimizer of its own, and
/// PyTorch's SGD as the outer one.
class PlainReplicas {
 public:
  PlainReplicas(int replicas, const AveragingOptions& options, bool adam = false, double clipping = 0.5)
      : options_(options),
        adam_(adam),
        clipping_(clipping),
        outer_model_(make()),
        outer_(outer_model_->parameters(), outer_options(options)) {
    for (int replica = 0; replica < replicas; ++replica) {
      models_.push_back(make());
      there_.push_back(true);
      optimizers_.push_back(optimizer_of(models_.back()));
    }
    for (const at::Tensor& parameter : outer_model_->parameters()) {
      slow_.push_back(torch::zeros_like(parameter));
    }
  }
  /// A replica ends: it neither steps nor counts.
  void lose(int replica) { there_[replica] = false; }
  /// It comes again: at the next meeting it takes the mean, and the first replica's optimizer states.
  void come(int replica) { comes_ = replica; }
  /// Each replica's loss in step `number`, from 1 on.
  std::vector<double> step(int64_t number) {
    const int64_t replicas = std::ssize(models_);
    std::vector<double> losses;
    for (int64_t r = 0; r < replicas; ++r) {
      if (!there_[r]) {
        losses.push_back(std::nan(""));
        continue;
      }
      std::vector<int64_t> indices;
      for (int64_t i = 0; i < kSamples / replicas; ++i) {
        indices.push_back(((number - 1) * kSamples + i * replicas + r) % Counting().size());
      }
      const data::Batch batch = Counting().get(indices);
      optimizers_[r]->zero_grad();
      const at::Tensor loss = models_[r]->loss(batch.input(), batch.target());
      loss.backward();
      torch::nn::utils::clip_grad_norm_(models_[r]->parameters(), clipping_ > 0 ? clipping_ : 1e30);
      optimizers_[r]->step();
      losses.push_back(loss.item<double>());
    }
    if (number % options_.every == 0) {
      meet();
    }
    return losses;
  }
  std::vector<at::Tensor> parameters(int replica) const { return models_[replica]->parameters(); }
  std::vector<at::Tensor> mean() const {
    std::vector<at::Tensor> means;
    for (size_t i = 0; i < slow_.size(); ++i) {
      means.push_back(torch::zeros_like(slow_[i]));
      for (size_t r = 0; r < models_.size(); ++r) {
        if (there_[r]) {
          means.back() += models_[r]->parameters()[i].detach() / living();
        }
      }
    }
    return means;
  }

 private:
  double living() const { return static_cast<double>(std::count(there_.begin(), there_.end(), true)); }
  static models::Gpt make() {
    torch::manual_seed(7); // as every rank
    return models::Gpt(small_gpt());
  }
  static torch::optim::SGDOptions outer_options(const AveragingOptions& options) {
    const bool nesterov = options.outer == Outer::nesterov;
    return torch::optim::SGDOptions(nesterov ? options.outer_lr : 1)
        .momentum(nesterov ? options.outer_momentum : 0)
        .nesterov(nesterov);
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer_of(const models::Gpt& model) const {
    if (adam_) {
      return std::make_unique<torch::optim::AdamW>(
          model->parameters(), torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).eps(kEps).weight_decay(0.1));
    }
    return std::make_unique<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(kInnerLr));
  }
  // What the outer model has are the parameters at the beginning of the round.
  void meet() {
    const torch::NoGradGuard no_grad;
    const std::vector<at::Tensor> means = mean();
    const std::vector<at::Tensor> start = outer_model_->parameters();
    const double lr = adam_ ? 0.01 : kInnerLr;
    for (size_t i = 0; i < start.size(); ++i) {
      const at::Tensor moved = start[i] - means[i];
      if (options_.outer == Outer::slowmo) {
        slow_[i] = options_.outer_momentum * slow_[i] + moved / lr;
        at::Tensor(start[i]).sub_(options_.outer_lr * lr * slow_[i]);
      } else {
        at::Tensor(start[i]).mutable_grad() = moved;
      }
    }
    if (options_.outer != Outer::slowmo) {
      outer_.step(); // without an outer optimizer: back to the mean, with lr 1 and no momentum
    }
    for (size_t r = 0; r < models_.size(); ++r) {
      for (size_t i = 0; i < start.size(); ++i) {
        models_[r]->parameters()[i].copy_(start[i]);
      }
    }
    if (options_.states == States::reset) {
      for (size_t r = 0; r < models_.size(); ++r) {
        optimizers_[r] = optimizer_of(models_[r]);
      }
    } else if (options_.states == States::average && adam_) {
      average_states();
    }
    if (comes_ >= 0) {
      optimizers_[comes_] = optimizer_of(models_[comes_]);
      for (size_t i = 0; adam_ && options_.states != States::reset && i < slow_.size(); ++i) {
        const auto& first = state_of(0, i);
        auto own = std::make_unique<torch::optim::AdamWParamState>();
        own->step(first.step());
        own->exp_avg(first.exp_avg().clone());
        own->exp_avg_sq(first.exp_avg_sq().clone());
        optimizers_[comes_]->state()[models_[comes_]->parameters()[i].unsafeGetTensorImpl()] = std::move(own);
      }
      there_[comes_] = true;
      comes_ = -1;
    }
  }
  torch::optim::AdamWParamState& state_of(size_t r, size_t i) {
    return static_cast<torch::optim::AdamWParamState&>(
        *optimizers_[r]->state().at(models_[r]->parameters()[i].unsafeGetTensorImpl()));
  }
  void average_states() {
    for (size_t i = 0; i < slow_.size(); ++i) {
      at::Tensor first = torch::zeros_like(slow_[i]);
      at::Tensor second = torch::zeros_like(slow_[i]);
      for (size_t r = 0; r < models_.size(); ++r) {
        if (there_[r]) {
          first += state_of(r, i).exp_avg() / living();
          second += state_of(r, i).exp_avg_sq() / living();
        }
      }
      for (size_t r = 0; r < models_.size(); ++r) {
        if (!there_[r]) {
          continue;
        }
        state_of(r, i).exp_avg().copy_(first);
        state_of(r, i).exp_avg_sq().copy_(second);
      }
    }
  }

  AveragingOptions options_;
  bool adam_;
  double clipping_;
  models::Gpt outer_model_;
  torch::optim::SGD outer_;
  std::vector<models::Gpt> models_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<at::Tensor> slow_; // SlowMo's momentum
  std::vector<bool> there_;
  int comes_ = -1;
};

inline double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value;
  }
  return sum / static_cast<double>(values.size());
}

} // namespace trireme::engine
