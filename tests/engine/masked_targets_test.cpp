// Targets of -100: losses and gradients are those of plain libtorch, which takes the mean over all targets of the whole
// batch that count, however unequal micro-batches and ranks are. Validation losses likewise.
#include "language_build.h"

#include <trireme/data/target_counts.h>
#include <trireme/models/llama.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <cmath>
#include <filesystem>
#include <numeric>

namespace trireme::engine {
namespace {

using testing::IsEmpty;
using Layout = SplitLayout;

constexpr int kSteps = 10;

/// Counting, of whose sample i the first (5 i) % 9 targets do not count: in some none does.
class MaskedCounting : public data::Dataset {
 public:
  explicit MaskedCounting(int64_t size = Counting().size(), bool masks = true) : size_(size), masks_(masks) {}

  int64_t size() const override { return size_; }
  data::Batch get(std::span<const int64_t> indices) const override {
    data::Batch batch = Counting().get(indices);
    batch.targets[0] = batch.targets[0].clone();
    for (int64_t row = 0; masks_ && row < std::ssize(indices); ++row) {
      batch.targets[0][row].narrow(0, 0, masked_in(indices[row])).fill_(data::kIgnoredTarget);
    }
    return batch;
  }
  bool masks_targets() const override { return masks_; }
  int64_t counted_targets(std::span<const int64_t> indices) const override {
    int64_t counted = 0;
    for (const int64_t index : indices) {
      counted += 8 - masked_in(index);
    }
    return counted;
  }
  std::string describe() const override { return "masked counting"; }

 private:
  static int64_t masked_in(int64_t index) { return 5 * index % 9; }
  int64_t size_;
  bool masks_;
};

models::LlamaOptions small_llama() {
  models::LlamaOptions options;
  options.layers = 4;
  options.hidden = 16;
  options.heads = 4;
  options.kv_heads = 2;
  options.intermediate = 24;
  options.sequence_length = 8;
  options.vocab_size = 31;
  return options;
}

/// cross_entropy of PyTorch itself.
at::Tensor loss_of_torch(models::Llama& model, const data::Batch& batch) {
  const at::Tensor logits = model->forward(batch.input());
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), batch.target().reshape({-1}), {},
                                at::Reduction::Mean, data::kIgnoredTarget);
}

Curve alone(int64_t size = Counting().size()) {
  models::Llama model(small_llama());
  return plain_curve(
      *model, [&](const data::Batch& batch) { return loss_of_torch(model, batch); }, MaskedCounting(size), kSplitBatch,
      kSteps);
}

SplitBuild build(const std::shared_ptr<const data::Dataset>& data = std::make_shared<MaskedCounting>()) {
  return language_build(small_llama(), [data](InitializeOptions& options) { options.training_data = data; });
}

/// The mean over all targets that count of the data.
double validation_loss_of_torch(models::Llama model) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> all(9);
  std::iota(all.begin(), all.end(), 0);
  return loss_of_torch(model, MaskedCounting(9).get(all)).item<double>();
}

void expect_trained_as_alone(const Layout& layout) {
  EXPECT_THAT(test::run_ranks(
                  layout.ranks(),
                  [&](comm::World& world) {
                    at::set_num_threads(1);
                    const Curve expected = alone();
                    EXPECT_LT(expected.losses.back(), 0.95 * expected.losses.front()) << "it must train";
                    SplitRun run(world, layout, build());
                    const int data_rank = layout.make_mesh(world).group(mesh::Axis::data).rank();
                    // 9 samples: the last micro-batches are filled up.
                    const auto evaluated = [&] {
                      data::DataLoader loader(
                          std::make_shared<MaskedCounting>(9),
                          data::DistributedSampler(
                              9, {.shuffle = false, .drop_last = false, .rank = data_rank, .replicas = layout.data}),
                          2);
                      return run.engine().evaluate(loader);
                    };
                    const double fresh = validation_loss_of_torch(models::Llama(small_llama()));
                    EXPECT_NEAR(evaluated(), fresh, 1e-5 * fresh);
                    for (size_t step = 0; step < kSteps; ++step) {
                      ASSERT_NEAR(run.step(), expected.losses[step], 2e-5 * expected.losses[step]) << "step " << step;
                      ASSERT_NEAR(run.engine().get_global_grad_norm().value(), expected.norms[step],
                                  (step < 4 ? 2e-5 : 2e-2) * expected.norms[step])
                          << "step " << step;
                    }
                  }),
              IsEmpty())
      << layout.describe();
}

TEST(MaskedTargetsTest, OneRankEqualsTorch) {
  expect_trained_as_alone({});
  expect_trained_as_alone({.accumulation = 8}); // some micro-batches have no target that counts
}

TEST(MaskedTargetsTest, ReplicasAndZero) {
  expect_trained_as_alone({.data = 2, .accumulation = 2});
  expect_trained_as_alone({.data = 2, .zero_stage = 3, .accumulation = 4});
}

TEST(MaskedTargetsTest, PipelinesTensorAndContextRanks) {
  expect_trained_as_alone({.pipe = 2, .accumulation = 8});
  expect_trained_as_alone({.tensor = 2, .accumulation = 2});
  expect_trained_as_alone({.context = 2, .accumulation = 2});
  expect_trained_as_alone({.pipe = 2, .data = 2, .accumulation = 4});
}

// 11 samples in steps of 8 over two ranks: a step has samples of two epochs.
TEST(MaskedTargetsTest, StepsOverTheEndOfAnEpochAndAfterALoad) {
  const auto folder = std::filesystem::path(testing::TempDir()) / concat("trireme_masked_", ::getpid());
  EXPECT_THAT(test::run_ranks(2,
                              [&](comm::World& world) {
                                at::set_num_threads(1);
                                const auto data = std::make_shared<MaskedCounting>(11);
                                const Layout layout{.data = 2, .accumulation = 2};
                                std::vector<double> losses;
                                {
                                  SplitRun run(world, layout, build(data));
                                  for (int step = 0; step < 6; ++step) {
                                    losses.push_back(run.step());
                                    if (step == 2) {
                                      run.engine().save_checkpoint(folder);
                                    }
                                  }
                                }
                                // Global micro-batches of 4: samples 0-3, 4-7 of each epoch, so every step has both.
                                const Curve expected = alone();
                                EXPECT_NEAR(losses[0], expected.losses[0], 1e-5);
                                SplitRun again(world, layout, build(data));
                                ASSERT_TRUE(again.engine().load_checkpoint(folder));
                                for (int step = 3; step < 6; ++step) {
                                  EXPECT_EQ(again.step(), losses[step]) << "step " << step;
                                }
                                SplitRun uneven(world, {.data = 2, .accumulation = 4}, build(data));
                                for (int step = 0; step < 2; ++step) {
                                  EXPECT_TRUE(std::isfinite(uneven.step()));
                                }
                              }),
              IsEmpty());
  std::filesystem::remove_all(folder);
}

/// Nothing counts in any sample.
class NothingCounts : public MaskedCounting {
 public:
  data::Batch get(std::span<const int64_t> indices) const override {
    data::Batch batch = MaskedCounting::get(indices);
    batch.targets[0].fill_(data::kIgnoredTarget);
    return batch;
  }
  int64_t counted_targets(std::span<const int64_t> /*indices*/) const override { return 0; }
};

TEST(MaskedTargetsTest, WithoutATargetTheLossIsZero) {
  EXPECT_THAT(test::run_ranks(1,
                              [](comm::World& world) {
                                at::set_num_threads(1);
                                SplitRun run(world, {.accumulation = 2}, build(std::make_shared<NothingCounts>()));
                                EXPECT_EQ(run.step(), 0);
                                EXPECT_EQ(run.engine().get_global_grad_norm().value(), 0);
                                data::DataLoader loader(
                                    std::make_shared<NothingCounts>(),
                                    data::DistributedSampler(192, {.shuffle = false, .drop_last = false}), 2);
                                EXPECT_EQ(run.engine().evaluate(loader, 2), 0);
                              }),
              IsEmpty());
}

TEST(MaskedTargetsTest, WithoutAMaskNothingChanges) {
  EXPECT_THAT(test::run_ranks(1,
                              [](comm::World& world) {
                                at::set_num_threads(1);
                                SplitRun plain(world, {.accumulation = 2}, build(std::make_shared<Counting>()));
                                SplitRun all(world, {.accumulation = 2},
                                             build(std::make_shared<MaskedCounting>(192, /*masks=*/false)));
                                for (int step = 0; step < 3; ++step) {
                                  EXPECT_EQ(plain.step(), all.step());
                                }
                              }),
              IsEmpty());
}

} // namespace
} // namespace trireme::engine
