// "sync_batch_norm": replicas train as one process does on their micro-batches together, whatever else the engine does.
#include "small_run.h"

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

namespace trireme::engine {
namespace {

namespace nn = torch::nn;
using test::on_ranks;
using test::run_ranks;

constexpr int kMicroBatches = 3; // of a step
constexpr int kNormSteps = 6;
constexpr int64_t kRows = 5; // of a micro-batch

// A bias in front of a norm has a gradient of 0 but for rounding, of which Adam would make whole steps.
nn::Sequential make_net() {
  torch::manual_seed(1);
  const auto linear = [](int64_t in, int64_t out) { return nn::Linear(nn::LinearOptions(in, out).bias(false)); };
  return nn::Sequential(linear(4, 8), nn::BatchNorm1d(8), nn::Tanh(), linear(8, 8), nn::BatchNorm1d(8), nn::Tanh(),
                        linear(8, 6), nn::BatchNorm1d(6), nn::Linear(6, 1));
}

// Other data for every replica and micro-batch.
at::Tensor inputs_of(int micro_batch, int replica) {
  return torch::sin(torch::arange(4 * kRows, torch::kFloat32).view({kRows, 4}) * (1.1 + replica) + micro_batch) +
         replica;
}

at::Tensor inputs_of_all(int micro_batch, int replicas) {
  std::vector<at::Tensor> all;
  for (int replica = 0; replica < replicas; ++replica) {
    all.push_back(inputs_of(micro_batch, replica));
  }
  return torch::cat(all);
}

at::Tensor loss_of(const at::Tensor& y, const at::Tensor& target) {
  return (y.to(at::kFloat) - target).square().mean();
}

struct Reference {
  std::vector<double> losses;
  nn::Sequential net = make_net();

  explicit Reference(int replicas) {
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0));
    for (int step = 0; step < kNormSteps; ++step) {
      optimizer.zero_grad();
      double sum = 0;
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        const at::Tensor x = inputs_of_all(kMicroBatches * step + micro, replicas);
        const at::Tensor loss = loss_of(net->forward(x), x.sum(1, true)) / kMicroBatches;
        loss.backward();
        sum += loss.item<double>();
      }
      optimizer.step();
      losses.push_back(sum);
    }
  }
};

struct NormCase {
  std::string name;
  int ranks = 2;
  int zero_stage = 0;
  int stages = 0; // 0: a model in one piece
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::one_f_one_b;
  int recompute = 0;     // layers at a time
  std::string type = {}; // "bf16", "fp16"
  double tolerance = 2e-5;
};

void PrintTo(const NormCase& one, std::ostream* stream) {
  *stream << one.name;
}

class SyncBatchNormTest : public testing::TestWithParam<NormCase> {};

void train_and_compare(comm::World& world, const NormCase& one) {
  nn::Sequential net = make_net();
  InitializeOptions options;
  const int replicas = world.size() / std::max(one.stages, 1);
  const std::string precision = one.type.empty()
                                    ? ""
                                    : concat(R"(, ")", one.type, R"(": {"enabled": true)",
                                             one.type == "fp16" ? R"(, "initial_scale_power": 8)" : "", "}");
  const std::string text =
      concat(R"({"train_micro_batch_size_per_gpu": )", kRows, R"(, "gradient_accumulation_steps": )", kMicroBatches,
             R"(, "gradient_clipping": 0, "sync_batch_norm": true)", R"(, "zero_optimization": {"stage": )",
             one.zero_stage, R"(, "stage3_param_persistence_threshold": 7})", precision,
             R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})");
  options.config = config::read_deepspeed(JsonNode::parse(text, "test.json"));
  const at::ScalarType type = one.type.empty() ? at::kFloat : one.type == "bf16" ? at::kBFloat16 : at::kHalf;
  std::shared_ptr<torch::nn::Module> module = net.ptr();
  if (one.stages > 0) {
    pipeline::PipelineOptions how;
    how.stages = one.stages;
    how.schedule = one.schedule;
    how.activation_checkpoint_interval = one.recompute;
    options.pipeline = std::make_shared<pipeline::PipelineModule>(
        net,
        [](const pipeline::Tensors& outputs, const pipeline::Tensors& targets) {
          return loss_of(outputs.at(0), targets.at(0));
        },
        how);
    module = options.pipeline;
  } else {
    options.model = module;
    options.loss = [net](const data::Batch& batch) mutable {
      return loss_of(net->forward(batch.input()), batch.target());
    };
  }
  const auto engine = initialize(world, options).engine;
  const Reference reference(replicas);
  const int replica = engine->group().rank();
  for (int step = 0; step < kNormSteps; ++step) {
    int micro = 0;
    const double loss = engine
                            ->train_batch([&] {
                              const at::Tensor x = inputs_of(kMicroBatches * step + micro++, replica);
                              return data::Batch{{x.to(type)}, {x.sum(1, true)}, kRows};
                            })
                            .item<double>();
    EXPECT_NEAR(loss, reference.losses[step], one.tolerance * std::abs(reference.losses[step])) << "step " << step;
  }
  std::map<std::string, at::Tensor> expected;
  for (const auto& item : reference.net->named_buffers()) {
    expected[item.key()] = item.value();
  }
  int compared = 0;
  for (const auto& item : module->named_buffers()) {
    const auto found = std::find_if(expected.begin(), expected.end(),
                                    [&](const auto& one) { return item.key().ends_with(one.first); });
    ASSERT_NE(found, expected.end()) << item.key();
    const at::Tensor difference = (item.value().to(at::kDouble) - found->second.to(at::kDouble)).abs().max();
    EXPECT_LT(difference.item<double>(),
              10 * one.tolerance * found->second.to(at::kDouble).abs().max().clamp_min(1).item<double>())
        << item.key();
    ++compared;
  }
  if (one.stages < 2) {
    EXPECT_EQ(compared, 9);
  }
}

TEST_P(SyncBatchNormTest, EqualsOneProcess) {
  on_ranks(GetParam().ranks, [](comm::World& world) { train_and_compare(world, GetParam()); });
}

using pipeline::ScheduleKind;
INSTANTIATE_TEST_SUITE_P(
    Cases, SyncBatchNormTest,
    testing::Values(NormCase{.name = "alone", .ranks = 1}, NormCase{.name = "two", .ranks = 2},
                    NormCase{.name = "four", .ranks = 4}, NormCase{.name = "zero1", .ranks = 3, .zero_stage = 1},
                    NormCase{.name = "zero2", .zero_stage = 2}, NormCase{.name = "zero3", .ranks = 3, .zero_stage = 3},
                    NormCase{.name = "bf16", .type = "bf16", .tolerance = 0.03},
                    NormCase{.name = "fp16", .type = "fp16", .tolerance = 0.01},
                    NormCase{.name = "stages", .ranks = 4, .stages = 2},
                    NormCase{.name = "zero_bubble", .ranks = 4, .stages = 2, .schedule = ScheduleKind::zero_bubble},
                    NormCase{.name = "recomputed", .ranks = 4, .stages = 2, .recompute = 1},
                    NormCase{.name = "recomputed_in_one", .ranks = 2, .stages = 1, .recompute = 2},
                    NormCase{.name = "stages_zero3", .ranks = 4, .zero_stage = 3, .stages = 2}),
    [](const auto& info) { return info.param.name; });

// The statistics' bytes are the data axis's, and an evaluation sends none.
TEST(SyncBatchNormTrafficTest, CountsAsTheDataAxis) {
  on_ranks(2, [](comm::World& world) {
    const auto sent = [&](bool sync) {
      nn::Sequential net = make_net();
      InitializeOptions options;
      options.model = net.ptr();
      options.loss = [net](const data::Batch& batch) mutable {
        return loss_of(net->forward(batch.input()), batch.target());
      };
      options.config = small_config(2 * kRows, 1);
      options.config.data_parallel.sync_batch_norm = sync;
      const auto engine = initialize(world, options).engine;
      const at::Tensor x = inputs_of(0, world.rank());
      const data::Batch batch{{x}, {x.sum(1, true)}, kRows};
      const int64_t start = engine->bytes_sent_by_axes().at("data");
      engine->train_batch([&] { return batch; });
      const int64_t trained = engine->bytes_sent_by_axes().at("data");
      engine->eval_batch(batch);
      return std::pair(trained - start, engine->bytes_sent_by_axes().at("data") - trained);
    };
    const auto [step, evaluation] = sent(true);
    const auto [plain_step, plain_evaluation] = sent(false);
    const int64_t channels = 8 + 8 + 6;
    EXPECT_EQ(step - plain_step, 4 * (2 * channels + 3) + 4 * 2 * channels)
        << "an all-gather forward, an all-reduce backward";
    EXPECT_EQ(evaluation, plain_evaluation);
  });
}

} // namespace
} // namespace trireme::engine
