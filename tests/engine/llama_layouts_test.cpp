// models::Llama with pipelines, replicas, ZeRO, tensor and context ranks: losses and gradient norms are those of one
// process and plain libtorch, and checkpoints of any layout continue in any other. tests/models/llama_test.cpp shows
// that one process equals transformers.
#include "language_build.h"

#include <trireme/models/llama.h>

#include <unistd.h>
#include <filesystem>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using models::LlamaOptions;
using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = pipeline::ScheduleKind;
using Layout = SplitLayout;

/// Four layers whose sizes no number of ranks divides where none needs to.
LlamaOptions split_llama() {
  LlamaOptions options;
  options.layers = 4;
  options.hidden = 16;
  options.heads = 4;
  options.kv_heads = 2;
  options.intermediate = 25;
  options.sequence_length = 8;
  options.vocab_size = 31;
  options.rope_theta = 100;
  return options;
}

/// Like Qwen3, with one head of keys and all biases.
LlamaOptions split_qwen() {
  LlamaOptions options = split_llama();
  options.kv_heads = 1;
  options.head_dim = 8;
  options.qk_norm = options.attention_bias = options.attention_output_bias = options.mlp_bias = true;
  options.tie_embeddings = false;
  return options;
}

LlamaOptions windowed(LlamaOptions options) {
  options.window = 3;
  options.first_window_layer = 1;
  return options;
}

using Change = std::function<void(InitializeOptions&)>;

Curve alone(const LlamaOptions& shape, int steps) {
  models::Llama model(shape);
  return plain_curve(
      *model, [&](const data::Batch& batch) { return model->loss(batch.input(), batch.target()); }, Counting(),
      kSplitBatch, steps);
}

/// Losses of `steps` steps to 1e-4. Gradient norms show the first steps' gradients to 2e-5; later Adam has enlarged
/// what rounding leaves, most where a norm's weight multiplies a single head.
void expect_llama_curve(SplitRun& run, const Curve& expected, size_t steps) {
  constexpr size_t kFirst = 4;
  for (size_t step = 0; step < steps; ++step) {
    EXPECT_NEAR(run.step(), expected.losses[step], (step < kFirst ? 1e-5 : 1e-4) * expected.losses[step]) << step;
    EXPECT_NEAR(run.engine().get_global_grad_norm().value(), expected.norms[step],
                (step < kFirst ? 2e-5 : 2e-2) * expected.norms[step])
        << step;
  }
}

void expect_trained_as_alone(const Layout& layout, const LlamaOptions& shape = split_llama(),
                             const Change& change = nullptr) {
  EXPECT_THAT(run_ranks(layout.ranks(),
                        [&](comm::World& world) {
                          at::set_num_threads(1);
                          const Curve expected = alone(shape, 20);
                          EXPECT_LT(expected.losses.back(), 0.9 * expected.losses.front()) << "it must train";
                          SplitRun run(world, layout, language_build(shape, change));
                          expect_llama_curve(run, expected,
                                             shape.window > 0 ? 8 : 20); // with windows it is unstable later
                        }),
              IsEmpty())
      << layout.describe() << ", " << shape.kv_heads << " heads of keys, window " << shape.window;
}

TEST(LlamaLayoutsTest, ReplicasAndZero) {
  for (const int stage : {0, 1, 2, 3}) {
    expect_trained_as_alone({.data = 2, .zero_stage = stage}, stage % 2 == 0 ? split_llama() : split_qwen());
  }
  expect_trained_as_alone({.data = 2, .zero_stage = 3, .accumulation = 2}, windowed(split_llama()));
}

TEST(LlamaLayoutsTest, Pipelines) {
  for (const LlamaOptions& shape : {windowed(split_llama()), split_qwen()}) {
    expect_trained_as_alone({.pipe = 2, .accumulation = 4}, shape);
    expect_trained_as_alone({.pipe = 2, .accumulation = 4, .schedule = Kind::zero_bubble}, shape);
  }
  expect_trained_as_alone({.pipe = 2, .data = 2, .zero_stage = 3, .accumulation = 2, .schedule = Kind::gpipe});
}

TEST(LlamaLayoutsTest, TensorRanks) {
  for (const bool sequence_parallel : {false, true}) {
    expect_trained_as_alone({.tensor = 2, .sequence_parallel = sequence_parallel});
    expect_trained_as_alone({.tensor = 2, .sequence_parallel = sequence_parallel}, windowed(split_qwen()));
    expect_trained_as_alone({.tensor = 4, .sequence_parallel = sequence_parallel}, split_qwen());
    expect_trained_as_alone({.data = 2, .tensor = 2, .sequence_parallel = sequence_parallel, .zero_stage = 3},
                            split_qwen());
    expect_trained_as_alone({.pipe = 2,
                             .tensor = 2,
                             .sequence_parallel = sequence_parallel,
                             .accumulation = 4,
                             .schedule = sequence_parallel ? Kind::zero_bubble : Kind::one_f_one_b},
                            split_qwen());
  }
  expect_trained_as_alone({.pipe = 2, .tensor = 2, .accumulation = 4, .schedule = Kind::zero_bubble}, split_qwen());
}

TEST(LlamaLayoutsTest, TokensOfEachSample) {
  for (const context::Kind kind : {context::Kind::ring, kUlysses}) {
    expect_trained_as_alone({.context = 2, .context_kind = kind});
    expect_trained_as_alone({.context = 2, .context_kind = kind}, split_qwen());
    expect_trained_as_alone(
        {.context = 2, .tensor = 2, .sequence_parallel = true, .zero_stage = 2, .context_kind = kind}, split_qwen());
    expect_trained_as_alone({.pipe = 2, .context = 2, .accumulation = 4, .context_kind = kind});
  }
  expect_trained_as_alone({.data = 2, .context = 2, .zero_stage = 3, .context_kind = kUlysses},
                          windowed(split_llama()));
}

// Beyond max_positions, where frequencies depend on the full sequence and not on a rank's part.
TEST(LlamaLayoutsTest, ScaledPositionsOfSplitSequences) {
  LlamaOptions shape = split_llama();
  shape.max_positions = 5;
  shape.rope_scaling = {.kind = models::RopeScaling::Kind::dynamic, .factor = 3};
  expect_trained_as_alone({.context = 2}, shape);
  expect_trained_as_alone({.tensor = 2, .sequence_parallel = true}, shape);
}

TEST(LlamaLayoutsTest, ActivationsRecomputedOrMoved) {
  const auto recomputed = [](InitializeOptions& options) {
    options.config.activations.policy = activations::Way::recompute;
  };
  const auto moved = [](InitializeOptions& options) {
    options.config.activations.policy = activations::Way::nvme;
    options.config.activations.nvme_path = testing::TempDir();
    options.config.activations.least_bytes = 0;
  };
  for (const Change& change : {Change(recomputed), Change(moved)}) {
    expect_trained_as_alone({.tensor = 2, .sequence_parallel = true}, split_qwen(), change);
    expect_trained_as_alone({.data = 2, .zero_stage = 3}, windowed(split_llama()), change);
    expect_trained_as_alone({.context = 2}, split_llama(), change);
  }
}

TEST(LlamaLayoutsTest, StatesAndParametersInFiles) {
  const auto in_files = [](InitializeOptions& options) {
    options.config.offload.optimizer.place = options.config.offload.parameters.place = offload::Place::nvme;
    options.config.offload.optimizer.nvme_path = options.config.offload.parameters.nvme_path = testing::TempDir();
  };
  expect_trained_as_alone({.data = 2, .zero_stage = 3}, windowed(split_llama()), in_files);
  expect_trained_as_alone({.data = 2, .tensor = 2, .zero_stage = 3}, split_qwen(), in_files);
}

TEST(LlamaLayoutsTest, AWindowAmongRanksOfRingAttentionIsRefused) {
  on_ranks(2, [](comm::World& world) {
    const auto step = [&](const LlamaOptions& shape) {
      SplitRun run(world, {.context = 2}, language_build(shape));
      run.step();
    };
    EXPECT_THAT([&] { step(windowed(split_llama())); },
                testing::ThrowsMessage<InputError>(HasSubstr("ring attention over 2 ranks has no window")));
  });
  LlamaOptions wide = split_llama();
  wide.window = 8;
  expect_trained_as_alone({.context = 2}, wide); // as long as the sequence: no window
}

TEST(LlamaLayoutsTest, CheckpointsOfAnyLayoutContinueInAnyOther) {
  const std::vector<Layout> layouts = {{.data = 2, .tensor = 2, .zero_stage = 1},
                                       {.pipe = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2},
                                       {.data = 2, .context = 2, .zero_stage = 3, .context_kind = kUlysses},
                                       {.tensor = 4}};
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_llama_layouts_", ::getpid());
  const auto saved = [&](size_t i) { return folder / std::to_string(i); };
  for (size_t i = 0; i < layouts.size(); ++i) {
    EXPECT_THAT(run_ranks(4,
                          [&](comm::World& world) {
                            SplitRun run(world, layouts[i], language_build(split_qwen()));
                            for (int step = 0; step < 4; ++step) {
                              run.step();
                            }
                            run.engine().save_checkpoint(saved(i));
                          }),
                IsEmpty())
        << layouts[i].describe();
  }
  for (const Layout& after : layouts) {
    EXPECT_THAT(run_ranks(4,
                          [&](comm::World& world) {
                            const std::vector<double> losses = alone(split_qwen(), 6).losses;
                            for (size_t i = 0; i < layouts.size(); ++i) {
                              SplitRun run(world, after, language_build(split_qwen()));
                              ASSERT_TRUE(run.engine().load_checkpoint(saved(i)));
                              for (int step = 4; step < 6; ++step) {
                                EXPECT_NEAR(run.step(), losses[step], 1e-5 * losses[step])
                                    << "step " << step << ", saved by " << layouts[i].describe();
                              }
                            }
                          }),
                IsEmpty())
        << after.describe();
  }
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::engine
