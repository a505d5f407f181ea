// Experts spread over data ranks, each split among tensor ranks: what the program says of placements and what the
// layers say count together.
#include "small_run.h"

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/parallel/tensor/ranks.h>
#include <trireme/parallel/tensor/split_module.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kExpertSteps = 6;
constexpr int kRows = 3; // of a replica
constexpr int64_t kExperts = 2;
constexpr int64_t kWidth = 4;
constexpr int64_t kExpertHidden = 5; // not even for two ranks
constexpr double kClipping = 0.05;   // below every norm

at::Tensor first_values(std::vector<int64_t> shape, double scale) {
  return torch::cos(torch::arange(c10::multiply_integers(shape)).to(torch::kFloat32) * scale).reshape(shape).div_(2);
}

/// Experts [begin, end), their hidden features split among tensor ranks; `scale` is whole on each of them.
struct MlpImpl : torch::nn::Module, tensor::SplitModule {
  MlpImpl(int64_t begin, int64_t end, tensor::Ranks ranks)
      : ranks(std::move(ranks)), part(tensor::part_of(kExpertHidden, this->ranks)) {
    up = register_parameter("up", first_values({kExperts, kWidth, kExpertHidden}, 1.1)
                                      .slice(0, begin, end)
                                      .slice(2, part.begin, part.end)
                                      .clone());
    down = register_parameter("down", first_values({kExperts, kExpertHidden, kWidth}, 0.7)
                                          .slice(0, begin, end)
                                          .slice(1, part.begin, part.end)
                                          .clone());
    scale = register_parameter("scale", first_values({kExperts, kWidth}, 0.3).slice(0, begin, end).clone());
  }
  std::map<std::string, bucket::Placement> placements() const override {
    return {{"up", {.global_shape = {1, kWidth, kExpertHidden}, .box_offset = {0, 0, part.begin}}},
            {"down", {.global_shape = {1, kExpertHidden, kWidth}, .box_offset = {0, part.begin, 0}}}};
  }
  at::Tensor forward(const at::Tensor& x, int64_t i) {
    const at::Tensor hidden = torch::tanh(torch::matmul(tensor::enter(x, ranks), up[i]));
    return tensor::leave(torch::matmul(hidden, down[i]), ranks) * scale[i];
  }
  tensor::Ranks ranks;
  tensor::RankRange part;
  at::Tensor up, down, scale;
};
TORCH_MODULE(Mlp);

struct ModelImpl : torch::nn::Module {
  ModelImpl(int64_t begin, int64_t end, const tensor::Ranks& ranks) {
    torch::manual_seed(3);
    shared = register_module("shared", torch::nn::Linear(kWidth, kWidth));
    expert = register_module("expert", Mlp(begin, end, ranks));
  }
  at::Tensor loss(const at::Tensor& x, int64_t i) {
    return (expert->forward(torch::tanh(shared->forward(x)), i) + x).square().mean();
  }
  torch::nn::Linear shared{nullptr};
  Mlp expert{nullptr};
};
TORCH_MODULE(Model);

at::Tensor rows_of(int step, int replica) {
  return torch::sin(torch::arange(kRows * kWidth).reshape({kRows, kWidth}) * (1.0 + step) + 3.0 * replica);
}

/// All in one process: replica r uses expert r % kExperts; the loss is the mean over replicas.
Curve with_torch(int replicas, int steps) {
  Model model(0, kExperts, tensor::Ranks());
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.3).momentum(0.9).weight_decay(0.1));
  Curve curve;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = torch::zeros({});
    for (int replica = 0; replica < replicas; ++replica) {
      loss = loss + model->loss(rows_of(step, replica), replica % kExperts) / replicas;
    }
    loss.backward();
    curve.losses.push_back(loss.item<double>());
    curve.norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), kClipping));
    EXPECT_GT(curve.norms.back(), kClipping);
    optimizer.step();
  }
  return curve;
}

struct ExpertRun {
  mesh::Mesh mesh;
  int replica;
  int64_t expert;
  Model model;
  Initialized made;

  ExpertRun(comm::World& world, int tensor, int zero_stage,
            const std::function<void(InitializeOptions&)>& change = nullptr)
      : mesh(mesh::training_mesh(world.group(), {.tensor = tensor})),
        replica(mesh.coordinate(mesh::Axis::data)),
        expert(replica % kExperts),
        model(expert, expert + 1, tensor::Ranks{mesh.group(mesh::Axis::tensor)}) {
    InitializeOptions options;
    const std::string text =
        concat(R"({"train_micro_batch_size_per_gpu": )", kRows, R"(, "gradient_clipping": )", kClipping,
               R"(, "optimizer": {"type": "SGD", "params": {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.1}}})");
    options.config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
    options.config.data_parallel.bucket_bytes = 128;
    options.config.zero.stage = zero_stage;
    options.config.zero.param_persistence_threshold = 0;
    options.mesh = mesh;
    options.model = model.ptr();
    options.loss = [this](const data::Batch& batch) { return model->loss(batch.input(), 0); };
    options.placement = [this](const std::string& name, const at::Tensor& parameter) {
      bucket::Placement placement;
      if (name.starts_with("expert.")) {
        placement.global_shape = parameter.sizes().vec();
        placement.global_shape[0] = kExperts;
        placement.box_offset.assign(placement.global_shape.size(), 0);
        placement.box_offset[0] = expert;
        placement.reduce_group = 1;
      }
      return placement;
    };
    options.reduce_groups = [this](const comm::Group& data) {
      std::vector<comm::Group> mine;
      for (int64_t e = 0; e < kExperts; ++e) {
        std::vector<int> ranks;
        for (int r = static_cast<int>(e); r < data.size(); r += kExperts) {
          ranks.push_back(r);
        }
        const comm::Group group = data.subgroup(ranks, concat("expert ", e));
        if (e == expert) {
          mine.push_back(group);
        }
      }
      return mine;
    };
    if (change) {
      change(options);
    }
    made = initialize(world, options);
  }
  double step() {
    const at::Tensor x = rows_of(static_cast<int>(made.engine->global_steps()), replica);
    return made.engine->train_batch([&] { return data::Batch{{x}, {x}, kRows}; }).item<double>();
  }
  void expect_curve(const Curve& expected, int from, int to) {
    for (int step = from; step < to; ++step) {
      EXPECT_NEAR(this->step(), expected.losses[step], 1e-5 * expected.losses[step]) << "step " << step;
      EXPECT_NEAR(made.engine->get_global_grad_norm().value(), expected.norms[step], 1e-5 * expected.norms[step])
          << "step " << step;
    }
  }
};

TEST(SplitExpertsTest, TrainAsInOneProcess) {
  for (const auto& [replicas, tensor] : {std::pair(2, 1), std::pair(2, 2), std::pair(4, 2)}) {
    for (const int stage : {0, 1, 2, 3}) {
      if (replicas == 4 && stage % 2 == 0) {
        continue; // many processes
      }
      const Curve expected = with_torch(replicas, kExpertSteps);
      EXPECT_THAT(run_ranks(replicas * tensor,
                            [&, tensor = tensor](comm::World& world) {
                              ExpertRun run(world, tensor, stage);
                              EXPECT_EQ(run.made.engine->num_parameters(),
                                        kWidth * kWidth + kWidth + kExperts * (2 * kWidth * kExpertHidden + kWidth));
                              run.expect_curve(expected, 0, kExpertSteps);
                            }),
                  IsEmpty())
          << replicas << " replicas of " << tensor << " tensor ranks, ZeRO stage " << stage;
    }
  }
}

TEST(SplitExpertsTest, CheckpointsOfAnyLayoutContinueInAnyOther) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_split_experts_", ::getpid());
  const Curve expected = with_torch(2, kExpertSteps);
  for (const int tensor : {1, 2}) {
    on_ranks(2 * tensor, [&](comm::World& world) {
      ExpertRun run(world, tensor, 1);
      run.expect_curve(expected, 0, 3);
      run.made.engine->save_checkpoint(folder / std::to_string(tensor));
    });
  }
  for (const int saved : {1, 2}) {
    const auto checkpoint = checkpoint::Checkpoint::open(folder / std::to_string(saved));
    EXPECT_EQ(checkpoint.entry("expert.up").shape, (std::vector<int64_t>{kExperts, kWidth, kExpertHidden}));
    EXPECT_EQ(checkpoint.entry("momentum_buffer/expert.down").shape,
              (std::vector<int64_t>{kExperts, kExpertHidden, kWidth}));
    for (const int tensor : {1, 2}) {
      EXPECT_THAT(run_ranks(2 * tensor,
                            [&](comm::World& world) {
                              ExpertRun run(world, tensor, 0);
                              ASSERT_TRUE(run.made.engine->load_checkpoint(folder / std::to_string(saved)));
                              run.expect_curve(expected, 3, kExpertSteps);
                            }),
                  IsEmpty())
          << "saved with " << saved << " tensor ranks, loaded with " << tensor;
    }
  }
  fs::remove_all(folder);
}

TEST(SplitExpertsTest, ParameterGroupsSeeNamesAndSizesOfTheWholeModel) {
  using Sizes = std::map<std::string, std::vector<int64_t>>;
  Sizes whole;
  const Model model(0, kExperts, tensor::Ranks());
  for (const auto& item : model->named_parameters()) {
    whole[item.key()] = item.value().sizes().vec();
  }
  for (const auto& [tensor, stage] : {std::pair(1, 0), std::pair(2, 0), std::pair(2, 3)}) {
    EXPECT_THAT(run_ranks(2 * tensor,
                          [&, tensor = tensor, stage = stage](comm::World& world) {
                            Sizes seen;
                            const auto chooses = [&](const std::string& name, const std::vector<int64_t>& sizes) {
                              seen[name] = sizes;
                              return false;
                            };
                            ExpertRun run(world, tensor, stage, [&](InitializeOptions& options) {
                              options.parameter_groups = {{.chooses = chooses}};
                            });
                            EXPECT_EQ(seen, whole);
                          }),
                IsEmpty())
        << tensor << " tensor ranks, ZeRO stage " << stage;
  }
}

// Where a program splits a parameter among the tensor ranks by itself, its word stands.
TEST(SplitExpertsTest, AParameterThatTheProgramSplitsAmongTensorRanks) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_own_split_", ::getpid());
  on_ranks(2, [&](comm::World& world) {
    const auto model = std::make_shared<torch::nn::Module>();
    const at::Tensor rows = model->register_parameter("rows", torch::full({3, 2}, 1.0 + world.rank()));
    const at::Tensor whole = model->register_parameter("whole", torch::ones({2}));
    InitializeOptions options;
    options.config = config::read_deepspeed(
        JsonNode::parse(R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1000})", "test.json"));
    options.mesh = mesh::training_mesh(world.group(), {.tensor = 2});
    options.model = model;
    options.loss = [&](const data::Batch& batch) {
      return (rows.square().sum() + whole.square().sum()) * batch.input().sum();
    };
    options.placement = [&](const std::string& name, const at::Tensor&) {
      return name == "rows" ? bucket::Placement{.global_shape = {6, 2}, .box_offset = {3 * world.rank(), 0}}
                            : bucket::Placement();
    };
    const auto engine = initialize(world, options).engine;
    EXPECT_EQ(engine->num_parameters(), 14);
    engine->train_batch([] { return data::Batch{{torch::ones({1})}, {}, 1}; });
    // 2 x: of 6 elements of 1 and 6 of 2, and of 2 of 1.
    EXPECT_NEAR(engine->get_global_grad_norm().value(), std::sqrt(6 * 4 + 6 * 16 + 2 * 4), 1e-5);
    engine->save_checkpoint(folder);
    EXPECT_EQ(checkpoint::Checkpoint::open(folder).entry("rows").shape, (std::vector<int64_t>{6, 2}));
  });
  fs::remove_all(folder);
}

TEST(SplitExpertsTest, WhatContradictsIsRefusedByName) {
  on_ranks(4, [](comm::World& world) {
    const auto refusal = [&](const std::function<void(InitializeOptions&)>& change) {
      return test::error_of([&] { ExpertRun run(world, 2, 0, change); });
    };
    EXPECT_THAT(refusal([](auto& options) {
                  options.placement = [](const std::string& name, const at::Tensor& parameter) {
                    const int64_t here = parameter.size(parameter.dim() - 1);
                    return name == "expert.up"
                               ? bucket::Placement{.global_shape = {1, kWidth, 2 * here}, .box_offset = {0, 0, here}}
                               : bucket::Placement();
                  };
                }),
                testing::AllOf(HasSubstr("\"expert.up\" contradicts its layer in dim 2: this rank has 3 from "
                                         "offset 3 of 6, by its layer from offset 0 of 5"),
                               HasSubstr("boxes along other dims only")));
    EXPECT_THAT(refusal([](auto& options) { options.sequence_parallel = true; }),
                testing::AllOf(HasSubstr("\"expert.scale\" has reduce_group 1, but the 2 tensor ranks have it whole"),
                               HasSubstr("switch sequence_parallel off")));
    EXPECT_THAT(refusal([](auto& options) { // the number of a group that the engine made
                  options.placement = [](const std::string& name, const at::Tensor&) {
                    return bucket::Placement{.reduce_group = name == "expert.up" ? 2 : 0};
                  };
                }),
                HasSubstr("\"expert.up\" has reduce_group 2, but there are 2 groups"));
  });
}

} // namespace
} // namespace trireme::engine
