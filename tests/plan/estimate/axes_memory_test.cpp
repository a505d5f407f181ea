// What ranks of the axes tensor and context allocate for a step, beside the estimate's activations.
#include "allocated.h"
#include "axes_run.h"

#include <trireme/base/error.h>
#include <trireme/mesh/mesh.h>
#include <trireme/models/gpt.h>
#include <trireme/plan/estimate/activations.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <limits>

namespace trireme::estimate {
namespace {

struct AxesCase {
  int tensor = 1, context = 1;
  bool sequence_parallel = false;
  context::Kind kind = context::Kind::ring;
  double dropout = 0;

  std::string describe() const {
    return concat("tensor ", tensor, sequence_parallel ? " with sequence parallelism" : "", ", context ", context,
                  kind == context::Kind::ring ? "" : " (Ulysses)", ", dropout ", dropout);
  }
};

constexpr int64_t kSamples = 4;

models::GptOptions shape(const AxesCase& c) {
  models::GptOptions options;
  options.layers = 3;
  options.hidden = 128;
  options.heads = 8;
  options.sequence_length = 512;
  options.vocab_size = 300;
  options.tie_embeddings = false;
  options.dropout = c.dropout;
  return options;
}

Run run_of(const AxesCase& c) {
  Conditions conditions;
  conditions.samples = kSamples;
  conditions.tensor_ranks = c.tensor;
  conditions.context_ranks = c.context;
  conditions.context_kind = c.kind;
  conditions.sequence_parallel = c.sequence_parallel;
  return gpt_run(shape(c), conditions);
}

// Over gloo all memory of messages comes from libtorch's allocator.
void expect_near_the_estimate(const AxesCase& c) {
  EXPECT_THAT(test::run_ranks(c.tensor * c.context,
                              [&](comm::World& world) {
                                const mesh::Mesh mesh =
                                    mesh::training_mesh(world.group(), {.context = c.context, .tensor = c.tensor});
                                models::ModelRanks ranks;
                                ranks.tensor = {mesh.group(mesh::Axis::tensor), c.sequence_parallel};
                                ranks.context = mesh.group(mesh::Axis::context);
                                ranks.context_kind = c.kind;
                                models::Gpt model(shape(c), ranks);
                                int64_t parameters = 0;
                                for (at::Tensor& parameter : model->parameters()) {
                                  parameters += parameter.numel();
                                  parameter.mutable_grad() = torch::zeros_like(parameter);
                                }
                                const at::Tensor tokens = torch::arange(kSamples * 512).view({kSamples, 512}) % 300;
                                const auto step = [&] { model->loss(tokens, tokens).backward(); };
                                step(); // also makes what stays
                                // A backend's thread may let go of a message late, so that there is more before a step,
                                // or at its peak, than there needs to be: the least of several counts.
                                const Allocated allocated;
                                int64_t before = allocated.now();
                                int64_t peak = std::numeric_limits<int64_t>::max();
                                for (int round = 0; round < 4; ++round) {
                                  before = std::min(before, allocated.now());
                                  allocated.restart();
                                  step();
                                  peak = std::min(peak, allocated.most());
                                }
                                const int64_t most = peak - before;
                                const Run described = run_of(c);
                                const int64_t expected = activations_of(described, 0).bytes;
                                EXPECT_GT(static_cast<double>(expected), 0.98 * static_cast<double>(most));
                                EXPECT_LT(static_cast<double>(expected), 1.1 * static_cast<double>(most));
                                if (world.rank() == 0) {
                                  EXPECT_EQ(parameters, described.model.parameters());
                                  std::printf("%s: allocated %.2f MB, estimated %+.1f %%\n", c.describe().c_str(),
                                              static_cast<double>(most) / 1e6,
                                              100.0 * (static_cast<double>(expected) / static_cast<double>(most) - 1));
                                }
                              },
                              {.backend = "gloo"}),
              testing::IsEmpty())
      << c.describe();
}

TEST(AxesMemoryTest, OneRank) {
  expect_near_the_estimate({});
  expect_near_the_estimate({.dropout = 0.1});
}

TEST(AxesMemoryTest, TensorRanks) {
  for (const int tensor : {2, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      expect_near_the_estimate({.tensor = tensor, .sequence_parallel = sequence_parallel});
    }
  }
  expect_near_the_estimate({.tensor = 2, .sequence_parallel = true, .dropout = 0.1});
}

TEST(AxesMemoryTest, ContextRanks) {
  for (const int context : {2, 4}) {
    for (const auto kind : {context::Kind::ring, context::Kind::ulysses}) {
      expect_near_the_estimate({.context = context, .kind = kind, .dropout = context == 2 ? 0.1 : 0});
    }
  }
}

TEST(AxesMemoryTest, Together) {
  for (const bool sequence_parallel : {false, true}) {
    expect_near_the_estimate({.tensor = 2, .context = 2, .sequence_parallel = sequence_parallel});
  }
}

} // namespace
} // namespace trireme::estimate
