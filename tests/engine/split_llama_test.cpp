// A model of one's own made of tensor::ParallelAttention and tensor::ParallelMlp, with replicas and ZeRO: losses and gradient norms are those of one process and plain
// libtorch, and checkpoints of any layout continue in any other.
#include "small_run.h"

#include <tests/support/run_ranks.h>

#include <trireme/parallel/tensor/attention.h>
#include <trireme/parallel/tensor/cross_entropy.h>
#include <trireme/parallel/tensor/mlp.h>

#include <gmock/gmock.h>
#include <torch/nn/modules/normalization.h>

#include <filesystem>
#include <functional>
#include <numeric>
#include <unistd.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kBatch = 8;
constexpr int kSteps = 10;
constexpr int64_t kVocabulary = 31;
constexpr int64_t kHidden = 16;

nn::LayerNorm norm(int64_t hidden) {
  return nn::LayerNorm(nn::LayerNormOptions({hidden}));
}

/// Turns the features of a head by their token's place (Su et al. 2021, arXiv:2104.09864).
at::Tensor turned(const at::Tensor& x_BATD) {
  const int64_t half = x_BATD.size(3) / 2;
  const at::Tensor angle = torch::arange(x_BATD.size(2)).unsqueeze(1) * torch::pow(100.0, -torch::arange(half) / static_cast<double>(half));
  const at::Tensor a = x_BATD.slice(3, 0, half), b = x_BATD.slice(3, half);
  return torch::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
}

// Shown by docs/tensor_parallel.md.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t hidden, int64_t kv_heads, const tensor::Ranks& ranks) {
    const tensor::ParallelAttentionOptions attention{.hidden = hidden, .heads = 4, .kv_heads = kv_heads};
    self_attn = register_module("self_attn", tensor::ParallelAttention(attention, ranks));
    mlp = register_module("mlp", tensor::ParallelMlp(tensor::ParallelMlpOptions{.hidden = hidden, .intermediate = 40}, ranks));
    input_norm = register_module("input_norm", norm(hidden));
    mlp_norm = register_module("mlp_norm", norm(hidden));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto heads = self_attn->project(input_norm->forward(x));
    heads.q = turned(heads.q); // by position
    heads.k = turned(heads.k);
    const at::Tensor y = x + self_attn->o_proj->forward(self_attn->mix(heads));
    return y + mlp->forward(mlp_norm->forward(y));
  }
  tensor::ParallelAttention self_attn{nullptr};
  tensor::ParallelMlp mlp{nullptr};
  torch::nn::LayerNorm input_norm{nullptr}, mlp_norm{nullptr};
};
TORCH_MODULE(Block);

struct OwnModelImpl : torch::nn::Module {
  OwnModelImpl(int64_t kv_heads, const tensor::Ranks& ranks) : ranks(ranks) {
    embed_tokens = register_module("embed_tokens", zero::Sharded<tensor::VocabParallelEmbedding>(kVocabulary, kHidden, ranks));
    layers->emplace_back(kHidden, kv_heads, ranks);
    layers->emplace_back(kHidden, kv_heads, ranks);
    register_module("layers", layers);
    last_norm = register_module("norm", norm(kHidden));
    lm_head = register_module("lm_head", zero::Sharded<tensor::ColumnParallelLinear>(kHidden, kVocabulary, ranks, /*bias=*/false));
  }
  at::Tensor loss(const data::Batch& batch) {
    at::Tensor x = embed_tokens->forward(batch.input());
    for (auto& layer : *layers) {
      x = layer->forward(x);
    }
    return tensor::cross_entropy(lm_head->forward(last_norm->forward(x)).flatten(0, 1), batch.target().flatten(), kVocabulary, ranks);
  }

  tensor::Ranks ranks;
  zero::Sharded<tensor::VocabParallelEmbedding> embed_tokens{nullptr};
  zero::ShardedList<Block> layers;
  nn::LayerNorm last_norm{nullptr};
  zero::Sharded<tensor::ColumnParallelLinear> lm_head{nullptr};
};
TORCH_MODULE(OwnModel);

struct OwnLayout {
  int data = 1;
  int tensor = 1;
  bool sequence_parallel = false;
  int zero_stage = 0;
  int64_t kv_heads = 2;

  int ranks() const {
    return data * tensor;
  }
  std::string describe() const {
    return concat("data ", data, ", tensor ", tensor, sequence_parallel ? " with sequence parallelism" : "", ", ZeRO ", zero_stage, ", ", kv_heads, " heads of keys");
  }
};

/// Through the engine.
class OwnRun {
 public:
  OwnRun(comm::World& world, const OwnLayout& layout, const std::function<void(config::EngineConfig&)>& change = nullptr) {
    InitializeOptions options;
    options.mesh = mesh::training_mesh(world.group(), {.data = layout.data, .tensor = layout.tensor});
    options.sequence_parallel = layout.sequence_parallel;
    at::manual_seed(5);
    OwnModel model(layout.kv_heads, tensor::Ranks{options.mesh->group(mesh::Axis::tensor), layout.sequence_parallel});
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch); };
    options.config = small_config(kBatch, 1);
    options.config.zero.stage = layout.zero_stage;
    options.config.zero.param_persistence_threshold = 0;
    if (change) {
      change(options.config);
    }
    options.training_data = std::make_shared<Counting>();
    options.shuffle = false;
    made_ = initialize(world, options);
  }
  double step() {
    return made_.engine->train_batch().item<double>();
  }
  Engine& engine() {
    return *made_.engine;
  }

 private:
  Initialized made_;
};

struct OwnCurve {
  std::vector<double> losses, norms;
  int64_t parameters = 0;
};

/// Nothing but libtorch: one process, the whole model and batch.
OwnCurve alone(int64_t kv_heads) {
  at::manual_seed(5);
  OwnModel model(kv_heads, tensor::Ranks());
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(0.1));
  const Counting data;
  OwnCurve curve;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<int64_t> indices(kBatch);
    std::iota(indices.begin(), indices.end(), step * kBatch);
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(data.get(indices));
    loss.backward();
    curve.losses.push_back(loss.item<double>());
    curve.norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0));
    optimizer.step();
  }
  for (const at::Tensor& parameter : model->parameters()) {
    curve.parameters += parameter.numel();
  }
  return curve;
}

void expect_trained_as_alone(const OwnLayout& layout) {
  EXPECT_THAT(run_ranks(layout.ranks(),
                        [&](comm::World& world) {
                          at::set_num_threads(1);
                          const OwnCurve expected = alone(layout.kv_heads);
                          EXPECT_LT(expected.losses.back(), 0.9 * expected.losses.front()) << "it must train";
                          OwnRun run(world, layout);
                          EXPECT_EQ(run.engine().num_parameters(), expected.parameters);
                          for (int step = 0; step < kSteps; ++step) {
                            ASSERT_NEAR(run.step(), expected.losses[step], 1e-5 * expected.losses[step]) << "step " << step;
                            ASSERT_NEAR(run.engine().get_global_grad_norm().value(), expected.norms[step], 2e-5 * expected.norms[step]) << "step " << step;
                          }
                        }),
              IsEmpty())
      << layout.describe();
}

TEST(SplitLlamaTest, TensorRanksAlone) {
  for (const bool sequence_parallel : {false, true}) {
    expect_trained_as_alone({.tensor = 2, .sequence_parallel = sequence_parallel});
    expect_trained_as_alone({.tensor = 4, .sequence_parallel = sequence_parallel, .kv_heads = 1});
  }
}

TEST(SplitLlamaTest, WithReplicasAndZero) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool sequence_parallel : {false, true}) {
      expect_trained_as_alone({.data = 2, .tensor = 2, .sequence_parallel = sequence_parallel, .zero_stage = stage, .kv_heads = stage % 3 == 0 ? 1 : 2});
    }
  }
  expect_trained_as_alone({.data = 2, .tensor = 2, .zero_stage = 0});
  expect_trained_as_alone({.data = 2, .tensor = 2, .zero_stage = 3});
}

TEST(SplitLlamaTest, ACheckpointOfAnyLayoutContinuesInAnyOther) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_split_llama_", ::getpid());
  const std::vector<std::pair<OwnLayout, OwnLayout>> changes = {
      {{.tensor = 2}, {}},
      {{.data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3, .kv_heads = 1}, {.data = 2, .kv_heads = 1}},
      {{.tensor = 4}, {.data = 2, .tensor = 2, .zero_stage = 1}},
      {{}, {.tensor = 4, .sequence_parallel = true}},
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    const auto& [before, after] = changes[i];
    const fs::path saved = folder / concat(i);
    EXPECT_THAT(run_ranks(before.ranks(),
                          [&, before = before](comm::World& world) {
                            at::set_num_threads(1);
                            OwnRun run(world, before);
                            for (int step = 0; step < 4; ++step) {
                              run.step();
                            }
                            run.engine().save_checkpoint(saved);
                          }),
                IsEmpty())
        << before.describe();
    EXPECT_THAT(run_ranks(after.ranks(),
                          [&, after = after](comm::World& world) {
                            at::set_num_threads(1);
                            const std::vector<double> losses = alone(after.kv_heads).losses;
                            OwnRun run(world, after);
                            ASSERT_TRUE(run.engine().load_checkpoint(saved));
                            for (int step = 4; step < kSteps; ++step) {
                              EXPECT_NEAR(run.step(), losses[step], 1e-5 * losses[step]) << "step " << step;
                            }
                          }),
                IsEmpty())
        << before.describe() << ", then " << after.describe();
  }
  fs::remove_all(folder);
}

// Rounding differs where sums are split, so the losses are only near those in fp32.
TEST(SplitLlamaTest, LowPrecision) {
  using Change = std::function<void(config::EngineConfig&)>;
  const std::vector<std::pair<const char*, Change>> kinds = {
      {"bf16", [](config::EngineConfig& config) { config.precision.compute = precision::Type::bf16; }},
      {"autocast", [](config::EngineConfig& config) { config.precision.autocast = true; }},
  };
  for (const auto& [name, change] : kinds) {
    for (const int64_t kv_heads : {1, 2}) {
      EXPECT_THAT(run_ranks(2,
                            [&, change = change](comm::World& world) {
                              at::set_num_threads(1);
                              const std::vector<double> losses = alone(kv_heads).losses;
                              OwnRun run(world, {.tensor = 2, .sequence_parallel = true, .kv_heads = kv_heads}, change);
                              for (const double loss : losses) {
                                EXPECT_NEAR(run.step(), loss, 0.03 * loss);
                              }
                            }),
                  IsEmpty())
          << name << ", " << kv_heads << " heads of keys";
    }
  }
}

TEST(SplitLlamaTest, HeadsThatDoNotDivideAreRefused) {
  EXPECT_THAT(run_ranks(3, [](comm::World& world) { EXPECT_THAT([&] { OwnRun(world, {.tensor = 3}); }, testing::ThrowsMessage<InputError>(HasSubstr("the 3 tensor-parallel ranks must divide the 4 heads"))); }),
              IsEmpty());
}

} // namespace
} // namespace trireme::engine
