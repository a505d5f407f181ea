#pragma once

#include <trireme/optim/flat_optimizer.h>

#include <trireme/base/error.h>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trireme::optim {

inline at::Tensor allocate(int64_t numel, at::ScalarType type) {
  return torch::empty({numel}, type);
}

/// Every rule, with as many states as it can have.
inline const std::vector<Rule> kRules = {AdamOptions{},
                                         SgdOptions{.momentum = 0.9},
                                         LambOptions{},
                                         LionOptions{},
                                         AdagradOptions{.initial_accumulator_value = 0.1},
                                         RmspropOptions{.momentum = 0.9, .centered = true}};

inline OptimizerOptions options_of(Rule rule, StateType type = StateType::fp32) {
  if (auto* const rmsprop = std::get_if<RmspropOptions>(&rule)) {
    rmsprop->centered = rmsprop->centered && type == StateType::fp32; // all that it can be
  }
  return {.rule = rule, .state_type = type};
}

inline bool is_lamb(const Rule& rule) {
  return std::holds_alternative<LambOptions>(rule);
}

/// What one of `size` ranks has: parameters of odd sizes in buckets that none of them fills.
class Rank {
 public:
  Rank(const OptimizerOptions& options, int rank, int size, at::ScalarType type = torch::kFloat32,
       std::unique_ptr<bucket::StateStore> store = nullptr,
       const std::vector<int64_t>& sizes = {700, 1, 333, 2500, 40}) {
    torch::manual_seed(11);
    bucket::NamedTensors parameters;
    for (const int64_t n : sizes) {
      at::Tensor values = torch::randn({n}).to(torch::kBFloat16).to(type); // the same start in every type
      parameters.emplace_back(concat("p", n), values.set_requires_grad(true));
    }
    bucket::LayoutOptions layout;
    layout.bucket_bytes = 1100 * 4;
    layout.first_bucket_bytes = 256;
    layout.shards = size * 2; // in bf16 and in fp32 the same cut
    flat_ = std::make_unique<bucket::FlatParameters>(parameters, layout, allocate,
                                                     bucket::FlatOptions{.rank = rank, .size = size});
    optimizer_ = std::make_unique<FlatOptimizer>(
        std::vector{flat_.get()}, [](const bucket::TensorInfo&) { return ParameterOptions{0.01}; }, options, size > 1,
        std::move(store));
  }

  FlatOptimizer& optimizer() { return *optimizer_; }
  bucket::FlatParameters& flat() { return *flat_; }

  /// Gradients whose values are the same on every rank and exact in bf16, by parameter, wherever these lie.
  void set_gradients(int64_t step) {
    for (int64_t i = 0; i < flat_->count(); ++i) {
      torch::manual_seed(static_cast<uint64_t>(1000 * step + i));
      flat_->attach_zero_grad(i);
      flat_->parameter(i).mutable_grad().copy_((torch::randn(flat_->parameter(i).sizes()) * 0.1).to(torch::kBFloat16));
    }
  }
  void begin(int64_t step) {
    set_gradients(step);
    optimizer_->begin_step(0.01, std::nullopt, 0.5);
  }
  void step_all() {
    for (size_t b = 0; b < flat_->layout().buckets().size(); ++b) {
      optimizer_->step_bucket(0, static_cast<int64_t>(b));
    }
  }
  void run(int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      begin(step);
      optimizer_->prepare();
      step_all();
    }
  }

  /// "exp_avg/p700" and so on: pieces that this rank has, at their place in tensors of the whole size.
  std::map<std::string, at::Tensor> states() {
    std::map<std::string, at::Tensor> found;
    optimizer_->for_each_state(
        [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) {
          const auto [place, is_new] =
              found.try_emplace(concat(state, '/', tensor.name), torch::zeros({tensor.numel()}, values.options()));
          place->second.slice(0, begin, begin + values.numel()).copy_(values);
        });
    return found;
  }
  void load_states(const std::map<std::string, at::Tensor>& saved) {
    optimizer_->for_each_state(
        [&](const std::string& state, const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) {
          values.copy_(saved.at(concat(state, '/', tensor.name)).slice(0, begin, begin + values.numel()));
        });
  }
  /// The parameters by name: this rank's parts, the rest 0.
  std::map<std::string, at::Tensor> own_parameters() {
    std::map<std::string, at::Tensor> found;
    optimizer_->for_each_state(
        [&](const std::string&, const bucket::TensorInfo& tensor, int64_t begin, const at::Tensor& values) {
          for (int64_t i = 0; i < flat_->count(); ++i) {
            if (flat_->name(i) == tensor.name) {
              const at::Tensor part = flat_->parameter(i).detach().slice(0, begin, begin + values.numel());
              found.try_emplace(tensor.name, torch::zeros({tensor.numel()}, part.options()))
                  .first->second.slice(0, begin, begin + values.numel())
                  .copy_(part);
            }
          }
        });
    return found;
  }

 private:
  std::unique_ptr<bucket::FlatParameters> flat_;
  std::unique_ptr<FlatOptimizer> optimizer_;
};

/// Parameters and states are the same bits.
inline void expect_same_values(Rank& rank, Rank& expected, const std::string& state_type) {
  EXPECT_TRUE(torch::equal(rank.flat().flat_data(), expected.flat().flat_data()))
      << expected.optimizer().rule().name() << ' ' << state_type;
  const auto states = expected.states();
  for (const auto& [name, tensor] : rank.states()) {
    EXPECT_TRUE(torch::equal(tensor, states.at(name))) << name;
  }
}

} // namespace trireme::optim
