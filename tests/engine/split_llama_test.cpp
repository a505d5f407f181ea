// A model of one's own made of tensor::ParallelAttention and tensor::ParallelMlp, with replicas and ZeRO: losses and
// gradient norms are those of one process and plain libtorch, and checkpoints of any layout continue in any other.
#include "split_run.h"

#include <trireme/parallel/tensor/attention.h>
#include <trireme/parallel/tensor/cross_entropy.h>
#include <trireme/parallel/tensor/mlp.h>

#include <torch/nn/modules/normalization.h>

#include <unistd.h>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kVocabulary = 31;
constexpr int64_t kHidden = 16;

nn::LayerNorm norm(int64_t hidden) {
  return nn::LayerNorm(nn::LayerNormOptions({hidden}));
}

/// Turns the features of a head by their token's place (Su et al. 2021, arXiv:2104.09864).
at::Tensor turned(const at::Tensor& x_BATD) {
  const int64_t half = x_BATD.size(3) / 2;
  const at::Tensor angle =
      torch::arange(x_BATD.size(2)).unsqueeze(1) * torch::pow(100.0, -torch::arange(half) / static_cast<double>(half));
  const at::Tensor a = x_BATD.slice(3, 0, half), b = x_BATD.slice(3, half);
  return torch::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
}

// Shown by docs/tensor_parallel.md.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t hidden, int64_t kv_heads, const tensor::Ranks& ranks) {
    const tensor::ParallelAttentionOptions attention{.hidden = hidden, .heads = 4, .kv_heads = kv_heads};
    self_attn = register_module("self_attn", tensor::ParallelAttention(attention, ranks));
    mlp = register_module("mlp",
                          tensor::ParallelMlp(tensor::ParallelMlpOptions{.hidden = hidden, .intermediate = 40}, ranks));
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
    embed_tokens =
        register_module("embed_tokens", zero::Sharded<tensor::VocabParallelEmbedding>(kVocabulary, kHidden, ranks));
    layers->emplace_back(kHidden, kv_heads, ranks);
    layers->emplace_back(kHidden, kv_heads, ranks);
    register_module("layers", layers);
    last_norm = register_module("norm", norm(kHidden));
    lm_head = register_module("lm_head",
                              zero::Sharded<tensor::ColumnParallelLinear>(kHidden, kVocabulary, ranks, /*bias=*/false));
  }
  at::Tensor loss(const data::Batch& batch) {
    at::Tensor x = embed_tokens->forward(batch.input());
    for (auto& layer : *layers) {
      x = layer->forward(x);
    }
    return tensor::cross_entropy(lm_head->forward(last_norm->forward(x)).flatten(0, 1), batch.target().flatten(),
                                 kVocabulary, ranks);
  }

  tensor::Ranks ranks;
  zero::Sharded<tensor::VocabParallelEmbedding> embed_tokens{nullptr};
  zero::ShardedList<Block> layers;
  nn::LayerNorm last_norm{nullptr};
  zero::Sharded<tensor::ColumnParallelLinear> lm_head{nullptr};
};
TORCH_MODULE(OwnModel);

OwnModel own_model(int64_t kv_heads, const tensor::Ranks& ranks) {
  at::manual_seed(5);
  return OwnModel(kv_heads, ranks);
}

SplitBuild own_build(int64_t kv_heads, const std::function<void(config::EngineConfig&)>& change = nullptr) {
  return [=](const SplitLayout& layout, InitializeOptions& options) {
    OwnModel model = own_model(kv_heads, layout.model_ranks(*options.mesh).tensor);
    options.model = model.ptr();
    options.loss = [model](const data::Batch& batch) mutable { return model->loss(batch); };
    if (change) {
      change(options.config);
    }
  };
}

Curve alone(OwnModel model) {
  return plain_curve(
      *model, [&](const data::Batch& batch) { return model->loss(batch); }, Counting(), kSplitBatch, kSplitSteps);
}

std::vector<double> losses_alone(int64_t kv_heads) {
  return alone(own_model(kv_heads, tensor::Ranks())).losses;
}

void expect_own_model_trained_as_alone(const SplitLayout& layout, int64_t kv_heads = 2) {
  EXPECT_THAT(run_ranks(layout.ranks(),
                        [&](comm::World& world) {
                          at::set_num_threads(1);
                          const OwnModel whole = own_model(kv_heads, tensor::Ranks());
                          const Curve expected = alone(whole);
                          EXPECT_LT(expected.losses.back(), 0.9 * expected.losses.front()) << "it must train";
                          SplitRun run(world, layout, own_build(kv_heads));
                          int64_t parameters = 0;
                          for (const at::Tensor& parameter : whole->parameters()) {
                            parameters += parameter.numel();
                          }
                          EXPECT_EQ(run.engine().num_parameters(), parameters);
                          expect_curve(run, expected, /*norm_tolerance=*/2e-5);
                        }),
              IsEmpty())
      << layout.describe() << ", " << kv_heads << " heads of keys";
}

TEST(SplitLlamaTest, TensorRanksAlone) {
  for (const bool sequence_parallel : {false, true}) {
    expect_own_model_trained_as_alone({.tensor = 2, .sequence_parallel = sequence_parallel});
    expect_own_model_trained_as_alone({.tensor = 4, .sequence_parallel = sequence_parallel}, 1);
  }
}

TEST(SplitLlamaTest, WithReplicasAndZero) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool sequence_parallel : {false, true}) {
      expect_own_model_trained_as_alone(
          {.data = 2, .tensor = 2, .sequence_parallel = sequence_parallel, .zero_stage = stage},
          stage % 3 == 0 ? 1 : 2);
    }
  }
  expect_own_model_trained_as_alone({.data = 2, .tensor = 2, .zero_stage = 0});
  expect_own_model_trained_as_alone({.data = 2, .tensor = 2, .zero_stage = 3});
}

TEST(SplitLlamaTest, ACheckpointOfAnyLayoutContinuesInAnyOther) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_split_llama_", ::getpid());
  struct Change {
    SplitLayout before, after;
    int64_t kv_heads = 2;
  };
  const std::vector<Change> changes = {
      {{.tensor = 2}, {}},
      {{.data = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 3}, {.data = 2}, 1},
      {{.tensor = 4}, {.data = 2, .tensor = 2, .zero_stage = 1}},
      {{}, {.tensor = 4, .sequence_parallel = true}},
  };
  for (const Change& change : changes) {
    EXPECT_THAT(run_ranks(change.before.ranks(),
                          [&](comm::World& world) {
                            at::set_num_threads(1);
                            SplitRun run(world, change.before, own_build(change.kv_heads));
                            for (int step = 0; step < 4; ++step) {
                              run.step();
                            }
                            run.engine().save_checkpoint(folder);
                          }),
                IsEmpty())
        << change.before.describe();
    EXPECT_THAT(run_ranks(change.after.ranks(),
                          [&](comm::World& world) {
                            at::set_num_threads(1);
                            const std::vector<double> losses = losses_alone(change.kv_heads);
                            SplitRun run(world, change.after, own_build(change.kv_heads));
                            ASSERT_TRUE(run.engine().load_checkpoint(folder));
                            for (int step = 4; step < kSplitSteps; ++step) {
                              EXPECT_NEAR(run.step(), losses[step], 1e-5 * losses[step]) << "step " << step;
                            }
                          }),
                IsEmpty())
        << change.before.describe() << ", then " << change.after.describe();
    fs::remove_all(folder);
  }
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
                              const std::vector<double> losses = losses_alone(kv_heads);
                              SplitRun run(world, {.tensor = 2, .sequence_parallel = true},
                                           own_build(kv_heads, change));
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
  on_ranks(3, [](comm::World& world) {
    EXPECT_THAT([&] { SplitRun(world, {.tensor = 3}, own_build(2)); },
                testing::ThrowsMessage<InputError>(HasSubstr("the 3 tensor-parallel ranks must divide the 4 heads")));
  });
}

} // namespace
} // namespace trireme::engine
