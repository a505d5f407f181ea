// Parameters with an lr and a weight decay of their own, and torch optimizers handed to initialize(): what torch's
// optimizers do.
#include "small_run.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <map>

namespace trireme::engine {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

struct GroupedNetImpl : torch::nn::Module {
  GroupedNetImpl() {
    torch::manual_seed(3);
    first = register_module("first", zero::Sharded<torch::nn::Linear>(7, 11));
    middle = register_module("middle", zero::Sharded<torch::nn::Linear>(11, 11));
    last = register_module("last", zero::Sharded<torch::nn::Linear>(11, 3));
  }
  at::Tensor loss(const at::Tensor& x) {
    return last->forward(torch::tanh(middle->forward(torch::tanh(first->forward(x))))).square().mean();
  }
  std::vector<at::Tensor> biases() { return {first->bias, middle->bias, last->bias}; }
  zero::Sharded<torch::nn::Linear> first{nullptr}, middle{nullptr}, last{nullptr};
};
TORCH_MODULE(GroupedNet);

constexpr int kGroupSteps = 6;
constexpr int kGroupRows = 4; // of a rank

at::Tensor rows_of(int step, int rank) {
  return torch::sin(torch::arange(kGroupRows * 7).reshape({kGroupRows, 7}) * (1.0 + step) + 10.0 * rank);
}

using Weights = std::map<std::string, at::Tensor>;

Weights parameters_of(torch::nn::Module& model) {
  Weights found;
  for (const auto& item : model.named_parameters()) {
    found[item.key()] = item.value().detach().clone();
  }
  return found;
}

using MakeOptimizer = std::function<std::shared_ptr<torch::optim::Optimizer>(GroupedNet&)>;

Weights torch_alone(const MakeOptimizer& make, int ranks) {
  GroupedNet model;
  const auto optimizer = make(model);
  for (int step = 0; step < kGroupSteps; ++step) {
    std::vector<at::Tensor> rows;
    for (int rank = 0; rank < ranks; ++rank) {
      rows.push_back(rows_of(step, rank));
    }
    optimizer->zero_grad();
    model->loss(torch::cat(rows)).backward();
    optimizer->step();
  }
  return parameters_of(*model);
}

Weights in_engine(comm::World& world, int zero_stage, const char* optimizer,
                  const std::function<void(InitializeOptions&, GroupedNet&)>& change) {
  GroupedNet model;
  InitializeOptions options;
  const std::string text =
      concat(R"({"train_micro_batch_size_per_gpu": )", kGroupRows, R"(, "gradient_clipping": 0)", optimizer, "}");
  options.config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
  options.config.data_parallel.bucket_bytes = 400;
  options.config.zero.stage = zero_stage;
  options.config.zero.param_persistence_threshold = 10;
  options.model = model.ptr();
  options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch.input()); };
  change(options, model);
  const auto made = initialize(world, options);
  for (int step = 0; step < kGroupSteps; ++step) {
    const at::Tensor x = rows_of(step, world.rank());
    made.engine->train_batch([&] { return data::Batch{{x}, {x}, kGroupRows}; });
  }
  const auto whole = made.engine->gather_parameters(model->parameters());
  return parameters_of(*model);
}

// Weights, biases and the last weight differ.
template <class Optimizer, class Options>
MakeOptimizer in_groups(const Options& options) {
  return [options](GroupedNet& model) {
    const auto group = [&](std::vector<at::Tensor> parameters, double lr_factor, double weight_decay) {
      return torch::optim::OptimizerParamGroup(
          std::move(parameters),
          std::make_unique<Options>(Options(options).lr(lr_factor * options.lr()).weight_decay(weight_decay)));
    };
    const std::vector<torch::optim::OptimizerParamGroup> groups = {
        group({model->first->weight, model->middle->weight}, 1, 0.1), group(model->biases(), 2, 0),
        group({model->last->weight}, 0.25, 0.3)};
    return std::make_shared<Optimizer>(groups, Options(options).weight_decay(0));
  };
}

const MakeOptimizer kTorchAdamW = in_groups<torch::optim::AdamW>(torch::optim::AdamWOptions(0.02).betas({0.8, 0.95}));
const MakeOptimizer kTorchSgd =
    in_groups<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9).dampening(0.2));

void expect_weights(const Weights& found, const Weights& expected, double allowed, const std::string& where) {
  for (const auto& [name, tensor] : expected) {
    EXPECT_LE((found.at(name) - tensor).abs().max().item<double>(), allowed) << name << ", " << where;
  }
}

TEST(ParameterGroupsTest, AreThoseOfTorch) {
  on_ranks(2, [](comm::World& world) {
    const std::pair<const char*, MakeOptimizer> cases[] = {
        {R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "betas": [0.8, 0.95], "weight_decay": 0.1}})",
         kTorchAdamW},
        {R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}})",
         kTorchSgd}};
    for (const auto& [json, make] : cases) {
      const Weights expected = torch_alone(make, world.size());
      Weights bits;
      for (const int stage : {0, 1, 2, 3}) {
        const Weights found = in_engine(world, stage, json, [](InitializeOptions& options, GroupedNet& model) {
          options.parameter_groups = {
              {.chooses = [](const std::string& name,
                             const std::vector<int64_t>& sizes) { return name == "last.weight" && sizes[0] == 3; },
               .lr_factor = 0.25,
               .weight_decay = 0.3},
              {.parameters = model->biases(), .lr_factor = 2, .weight_decay = 0}};
        });
        expect_weights(found, expected, 1e-6, concat(json, " stage ", stage));
        bits = stage == 0 ? found : bits;
        expect_weights(found, bits, 0, concat("bits of stage ", stage));
      }
    }
  });
}

TEST(ParameterGroupsTest, ATorchOptimizerDoesInTheEngineWhatItDoesAlone) {
  namespace to = torch::optim;
  const std::map<std::string, MakeOptimizer> all = {
      {"AdamW", kTorchAdamW},
      {"SGD", kTorchSgd},
      {"Adam", in_groups<to::Adam>(to::AdamOptions(0.02).eps(1e-6))},
      {"RMSprop", in_groups<to::RMSprop>(to::RMSpropOptions(0.002).alpha(0.9).momentum(0.8).centered(true))},
      {"Adagrad", in_groups<to::Adagrad>(to::AdagradOptions(0.03).lr_decay(0.1).initial_accumulator_value(0.2))},
      {"SGD in one group",
       [](GroupedNet& model) {
         return std::make_shared<to::SGD>(model->parameters(),
                                          to::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
       }},
  };
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](comm::World& world) {
      for (const auto& [name, make] : all) {
        const Weights expected = torch_alone(make, world.size());
        for (const int stage : {0, 1, 2, 3}) {
          const Weights found = in_engine(world, stage, "", [&](InitializeOptions& options, GroupedNet& model) {
            options.optimizer = make(model);
          });
          expect_weights(found, expected, 2e-6, concat(name, " stage ", stage));
        }
      }
    });
  }
}

TEST(ParameterGroupsTest, WhatCannotBeTakenOverIsRefusedByName) {
  on_ranks(1, [](comm::World& world) {
    namespace to = torch::optim;
    const auto refusal = [&](const std::function<void(InitializeOptions&, GroupedNet&)>& change) -> std::string {
      try {
        in_engine(world, 0, "", change);
      } catch (const InputError& error) {
        return error.what();
      }
      return "trained";
    };
    const auto of = [&](const MakeOptimizer& make) {
      return refusal([&](InitializeOptions& options, GroupedNet& model) { options.optimizer = make(model); });
    };
    EXPECT_THAT(of([](GroupedNet& model) { return std::make_shared<to::LBFGS>(model->parameters()); }),
                HasSubstr("Accepted are torch::optim::AdamW, Adam, SGD, RMSprop and Adagrad"));
    EXPECT_THAT(of([](GroupedNet& model) {
                  return std::make_shared<to::Adam>(model->parameters(), to::AdamOptions().amsgrad(true));
                }),
                HasSubstr("amsgrad"));
    EXPECT_THAT(of([](GroupedNet& model) { return std::make_shared<to::SGD>(model->biases(), 0.1); }),
                HasSubstr("no group with parameter \"first.weight\""));
    EXPECT_THAT(of([](GroupedNet& model) {
                  auto stepped = std::make_shared<to::Adam>(model->parameters());
                  model->loss(rows_of(0, 0)).backward();
                  stepped->step();
                  return stepped;
                }),
                HasSubstr("has stepped already"));
    EXPECT_THAT(of([](GroupedNet& model) {
                  const std::vector<to::OptimizerParamGroup> groups = {
                      {{model->first->weight}, std::make_unique<to::SGDOptions>(to::SGDOptions(0.1).momentum(0.5))},
                      {model->biases(), std::make_unique<to::SGDOptions>(to::SGDOptions(0.1).momentum(0.9))}};
                  return std::make_shared<to::SGD>(groups, to::SGDOptions(0.1));
                }),
                HasSubstr("groups (0 and 1) that differ in more than lr and weight_decay"));
    EXPECT_THAT(refusal([](InitializeOptions& options, GroupedNet& model) {
                  options.optimizer = kTorchSgd(model);
                  options.config.optimizer.emplace();
                }),
                HasSubstr("a torch optimizer with optimizer: both step the parameters"));
    EXPECT_THAT(refusal([](InitializeOptions& options, GroupedNet&) { options.parameter_groups = {{.lr_factor = 2}}; }),
                HasSubstr("group 0 chooses no parameter"));
    EXPECT_THAT(refusal([](InitializeOptions& options, GroupedNet&) {
                  options.parameter_groups = {{.parameters = {torch::ones({2})}}};
                }),
                HasSubstr("not a parameter of the model"));
    EXPECT_THAT(refusal([](InitializeOptions& options, GroupedNet& model) {
                  options.parameter_groups = {{.parameters = model->biases(), .lr_factor = -1}};
                }),
                HasSubstr("lr_factor -1"));
  });
}

} // namespace
} // namespace trireme::engine
