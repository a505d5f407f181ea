// Packed documents: a window of several documents trains as if each ran alone, in every layout that takes them.
#include "language_build.h"

#include <trireme/models/documents.h>

#include <gmock/gmock.h>

namespace trireme::engine {
namespace {

using models::LanguageModel;
using models::LanguageOptions;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kPackedSteps = 6;

/// Counting, in whose windows of 8 tokens one to three documents follow one another.
class PackedCounting : public data::Dataset {
 public:
  int64_t size() const override { return Counting().size(); }
  data::Batch get(std::span<const int64_t> indices) const override {
    data::Batch batch = Counting().get(indices);
    batch.targets[0] = batch.targets[0].clone();
    at::Tensor positions = torch::empty({std::ssize(indices), 8}, torch::kLong);
    for (int64_t row = 0; row < std::ssize(indices); ++row) {
      int64_t position = 0;
      for (int64_t i = 0; i < 9; ++i) {
        if (begins(indices[row], i)) {
          position = 0;
          if (i > 0) { // predicted by another document
            batch.targets[0][row][i - 1] = data::kIgnoredTarget;
          }
        }
        if (i < 8) {
          positions[row][i] = position++;
        }
      }
    }
    batch.inputs.push_back(positions);
    return batch;
  }
  bool masks_targets() const override { return true; }
  int64_t counted_targets(std::span<const int64_t> indices) const override {
    int64_t counted = 0;
    for (const int64_t index : indices) {
      for (int64_t i = 1; i < 9; ++i) {
        counted += begins(index, i) ? 0 : 1;
      }
    }
    return counted;
  }
  std::string describe() const override { return "packed counting"; }

 private:
  static bool begins(int64_t index, int64_t token) { return token == index % 4 + 1 || token == index % 7 + 2; }
};

LanguageOptions packed_llama() {
  models::LlamaOptions options;
  options.layers = 2;
  options.hidden = 16;
  options.heads = 4;
  options.kv_heads = 2;
  options.intermediate = 24;
  options.sequence_length = 8;
  options.vocab_size = 31;
  options.rope_theta = 100;
  options.qk_norm = true;
  options.window = 4;
  return options;
}

LanguageOptions tiny_gpt() {
  models::GptOptions options = small_gpt();
  options.heads = 4;
  return options;
}

/// The mean over all targets that count of losses of each document, which the model reads alone.
at::Tensor loss_of_each_alone(const LanguageModel& model, const data::Batch& batch) {
  at::Tensor sum = torch::zeros({}, torch::kFloat);
  int64_t counted = 0;
  int64_t begin = 0; // among the tokens of all rows
  for (const int64_t length : models::document_lengths(batch.inputs.at(1))) {
    const auto document = [&](const at::Tensor& x) { return x.flatten().slice(0, begin, begin + length).unsqueeze(0); };
    const at::Tensor logits = model.forward(document(batch.input()));
    const at::Tensor target = document(batch.target()).flatten();
    sum = sum + at::cross_entropy_loss(logits.flatten(0, 1), target, {}, at::Reduction::Sum, data::kIgnoredTarget);
    counted += target.ne(data::kIgnoredTarget).sum().item<int64_t>();
    begin += length;
  }
  return sum / counted;
}

SplitBuild packed_build(const LanguageOptions& shape, bool recompute) {
  return language_build(shape, [recompute](InitializeOptions& options) {
    if (recompute) {
      options.config.activations.policy = activations::Way::recompute;
    }
    options.training_data = std::make_shared<PackedCounting>();
  });
}

void expect_trained_as_each_alone(const SplitLayout& layout, bool recompute = false) {
  for (const LanguageOptions& shape : {packed_llama(), tiny_gpt()}) {
    EXPECT_THAT(test::run_ranks(
                    layout.ranks(),
                    [&](comm::World& world) {
                      at::set_num_threads(1);
                      const LanguageModel model(shape);
                      const Curve expected = plain_curve(
                          *model.module(), [&](const data::Batch& batch) { return loss_of_each_alone(model, batch); },
                          PackedCounting(), kSplitBatch, kPackedSteps);
                      EXPECT_LT(expected.losses.back(), 0.97 * expected.losses.front());
                      SplitRun run(world, layout, packed_build(shape, recompute));
                      for (size_t step = 0; step < kPackedSteps; ++step) {
                        ASSERT_NEAR(run.step(), expected.losses[step], 2e-5 * expected.losses[step]) << "step " << step;
                        ASSERT_NEAR(run.engine().get_global_grad_norm().value(), expected.norms[step],
                                    (step < 4 ? 5e-5 : 2e-2) * expected.norms[step])
                            << "step " << step;
                      }
                    }),
                IsEmpty())
        << layout.describe() << (std::holds_alternative<models::GptOptions>(shape) ? ", gpt" : ", llama");
  }
}

TEST(PackedDocumentsTest, OneRankEqualsEachDocumentAlone) {
  expect_trained_as_each_alone({.accumulation = 2});
  expect_trained_as_each_alone({}, /*recompute=*/true);
}

TEST(PackedDocumentsTest, EveryLayoutEqualsEachDocumentAlone) {
  expect_trained_as_each_alone({.data = 2, .zero_stage = 3, .accumulation = 2});
  expect_trained_as_each_alone({.data = 2, .zero_stage = 3}, /*recompute=*/true);
  expect_trained_as_each_alone({.pipe = 2, .accumulation = 4});
  expect_trained_as_each_alone({.tensor = 2});
  expect_trained_as_each_alone({.tensor = 2, .sequence_parallel = true});
}

TEST(PackedDocumentsTest, LengthsFollowFromPositions) {
  EXPECT_THAT(models::document_lengths(torch::tensor({{0, 1, 0}, {0, 0, 1}}, torch::kLong)), ElementsAre(2, 1, 1, 2));
  EXPECT_THAT(models::document_lengths(torch::tensor({{5, 6, 0}}, torch::kLong)), ElementsAre(2, 1));
}

TEST(PackedDocumentsTest, ContextRanksAreRefused) {
  EXPECT_THAT(test::run_ranks(2,
                              [](comm::World& world) {
                                SplitRun run(world, {.context = 2}, packed_build(tiny_gpt(), false));
                                try {
                                  run.step();
                                  ADD_FAILURE() << "it must be refused";
                                } catch (const InputError& error) {
                                  EXPECT_THAT(error.what(), HasSubstr("context ranks split the tokens"));
                                }
                              }),
              IsEmpty());
}

} // namespace
} // namespace trireme::engine
