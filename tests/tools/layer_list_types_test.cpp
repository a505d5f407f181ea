// The types bert and alexnet of run files, which are layer lists: the same training in every layout, and in
// transformers.
#include "small_training.h"

#include <tests/support/command.h>
#include <tests/support/folders.h>
#include <tests/support/run_ranks.h>

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/monitor/metrics.h>

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <optional>

namespace trireme::tools {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::HasSubstr;

json bert(const std::string& more = "{}") {
  json run = common();
  run["model"] = {{"type", "bert"},       {"layers", 2},       {"hidden", 16},     {"heads", 2},
                  {"sequence_length", 8}, {"vocab_size", 260}, {"mask_token", 259}};
  run["data"]["validation"] = tokens_file("validation.bin", 7);
  run["engine"]["train_batch_size"] = 8;
  run["training"]["steps"] = 3;
  run.merge_patch(json::parse(more));
  return run;
}

std::string labelled_file(const std::string& name, int texts) {
  std::string lines;
  for (int i = 0; i < texts; ++i) {
    lines += concat(R"({"text": ")", i % 3 == 0 ? "aab" : "bcb", i % 10, R"(", "label": ")", i % 3 == 0 ? "a" : "b",
                    "\"}\n");
  }
  return file(name, lines);
}

json classifier() {
  json run = bert();
  run["model"].erase("mask_token");
  run["model"]["head"] = "classes";
  run["data"] = {{"type", "labelled_text"},
                 {"train", labelled_file("train.jsonl", 40)},
                 {"validation", labelled_file("validation.jsonl", 21)}};
  return run;
}

json alexnet() {
  json run = common();
  run["model"] = {{"type", "alexnet"}, {"channels", 1}, {"resize", 64}, {"hidden", 16}, {"dropout", 0}};
  run["data"] = {{"type", "images"},
                 {"train", images_file("images", 7)},
                 {"train_labels", labels_file("labels", 3)},
                 {"validation", images_file("images", 7)},
                 {"validation_labels", labels_file("labels", 3)}};
  run["engine"]["train_batch_size"] = 8;
  return run;
}

struct Curve {
  std::vector<double> losses; ///< of the steps, then of the validation data
  std::optional<double> accuracy;
};

// Written by the ranks, read by the test's process.
Curve curve_of(int ranks, const json& run) {
  on_ranks(ranks, [&](comm::World& world) { run_training(world, run); });
  Curve curve;
  const auto steps = monitor::read_metrics(out() / "metrics.jsonl");
  for (const monitor::StepMetrics& step : steps) {
    curve.losses.push_back(step.loss.value_or(-1));
  }
  if (!steps.empty()) {
    curve.losses.push_back(steps.back().val_loss.value_or(-1));
    curve.accuracy = steps.back().val_accuracy;
  }
  return curve;
}

void expect_same(const Curve& curve, const Curve& other) {
  ASSERT_EQ(curve.losses.size(), other.losses.size());
  for (size_t i = 0; i < curve.losses.size(); ++i) {
    EXPECT_NEAR(curve.losses[i], other.losses[i], 2e-5 * other.losses[i]) << "step " << i + 1;
  }
  EXPECT_EQ(curve.accuracy, other.accuracy);
}

class LayerListTypesTest : public SmallTrainingTest {};

TEST_F(LayerListTypesTest, ABertIsTheSameInEveryLayout) {
  const Curve one = curve_of(1, bert());
  ASSERT_EQ(one.losses.size(), 4u);
  EXPECT_NEAR(one.losses[0], std::log(260.0), 0.2) << "it knows nothing yet";
  EXPECT_LT(one.losses[2], one.losses[0]);
  EXPECT_FALSE(one.accuracy);
  for (const char* layout :
       {R"({"parallel": {"pipe": 2}, "engine": {"gradient_accumulation_steps": 2}})", R"({"parallel": {"tensor": 2}})",
        R"({"parallel": {"context": 2}})", R"({"engine": {"zero_optimization": {"stage": 3}}})"}) {
    SCOPED_TRACE(layout);
    expect_same(curve_of(2, bert(layout)), one);
  }
}

TEST_F(LayerListTypesTest, AResumedBertReadsTheSameMasks) {
  const Curve one = curve_of(1, bert());
  json half = bert();
  half["training"]["steps"] = 2;
  on_ranks(1, [&](comm::World& world) {
    run_training(world, half);
    run_training(world, bert(), /*resume=*/true);
  });
  const auto steps = monitor::read_metrics(out() / "metrics.jsonl");
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(*steps[2].loss, one.losses[2]);
}

TEST_F(LayerListTypesTest, AClassifierCountsWhatIsRight) {
  json run = classifier();
  run["training"]["steps"] = 20;
  const Curve one = curve_of(1, run);
  EXPECT_LT(one.losses.back(), 0.5);
  ASSERT_TRUE(one.accuracy);
  EXPECT_GT(*one.accuracy, 0.66) << "which is that of one answer for all texts";
  run["training"]["steps"] = 3;
  const Curve few = curve_of(1, run);
  run["parallel"] = {{"pipe", 2}};
  run["engine"]["gradient_accumulation_steps"] = 2;
  expect_same(curve_of(2, run), few);
}

// Its head and pooler are new.
TEST_F(LayerListTypesTest, AClassifierBeginsWithTheRunOfAnotherHead) {
  curve_of(1, bert());
  const fs::path pretrained = folder() / "pretrained";
  fs::rename(out(), pretrained);
  json run = classifier();
  run["training"]["steps"] = 1;
  run["engine"]["optimizer"]["params"]["lr"] = 0;
  const auto values = [&](const char* name, const fs::path& from) {
    return checkpoint::Checkpoint::open(*checkpoint::find_newest(from / "checkpoints")).read(name);
  };
  curve_of(1, run);
  const fs::path fresh = folder() / "fresh";
  fs::rename(out(), fresh);
  run["model"]["init_from"] = pretrained.string();
  curve_of(1, run);
  for (const char* name : {"bert.embeddings.word_embeddings.weight", "bert.encoder.layer.1.output.dense.weight"}) {
    EXPECT_TRUE(values(name, out()).equal(values(name, pretrained))) << name;
    EXPECT_FALSE(values(name, out()).equal(values(name, fresh))) << name;
  }
  for (const char* name : {"bert.pooler.dense.weight", "classifier.weight"}) {
    EXPECT_TRUE(values(name, out()).equal(values(name, fresh))) << name;
  }
}

TEST_F(LayerListTypesTest, AnAlexNetIsTheSameOnTwoStages) {
  json run = alexnet();
  const Curve one = curve_of(1, run);
  ASSERT_EQ(one.losses.size(), 3u);
  ASSERT_TRUE(one.accuracy);
  run["parallel"] = {{"pipe", 2}};
  run["engine"]["gradient_accumulation_steps"] = 2;
  expect_same(curve_of(2, run), one);
  run["data"]["train"] = images_file("wide", 7, 16);
  run["model"]["resize"] = 0;
  EXPECT_THAT(run_ranks(2, [&](comm::World& world) { run_training(world, run); }),
              testing::ElementsAre(HasSubstr("an alexnet needs 63 x 63"), HasSubstr("an alexnet needs 63 x 63")));
  run["model"]["channels"] = 3;
  EXPECT_THAT(run_ranks(2, [&](comm::World& world) { run_training(world, run); }),
              testing::Each(HasSubstr("have 1 channels, the model takes 3")));
}

// The nested lists of a tensor's values, for Python.
json rows_of(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    return tensor.item<int64_t>();
  }
  json rows = json::array();
  for (const at::Tensor& row : tensor.unbind()) {
    rows.push_back(rows_of(row));
  }
  return rows;
}

class BertFolderTest : public LayerListTypesTest {
 protected:
  static double transformers(const std::string& what) {
    const auto [status, output] = test::run_command(
        concat('"', test::python(), "\" \"", test::source_dir(), "/tests/tools/reference_bert_run.py\" ", what));
    EXPECT_EQ(status, 0) << output << "\n(./test installs transformers)";
    const size_t at = output.rfind("loss ");
    return status != 0 || at == std::string::npos ? 0 : std::stod(output.substr(at + 5));
  }
  // transformers' loss on the samples of one step of a run without shuffling.
  double loss_on_step(const json& run, int64_t step, const fs::path& model) const {
    const fs::path batch = folder() / "batch.json";
    on_ranks(1, [&](comm::World&) {
      std::vector<int64_t> samples(8);
      std::iota(samples.begin(), samples.end(), 8 * (step - 1));
      const data::Batch read_batch = data::make_datasets(read(run).data).train->get(samples);
      json inputs = json::array();
      for (const at::Tensor& input : read_batch.inputs) {
        inputs.push_back(rows_of(input));
      }
      write_file_atomically(batch, json{{"inputs", inputs}, {"targets", rows_of(read_batch.target())}}.dump());
    });
    return transformers(concat("loss ", model.string(), ' ', batch.string()));
  }
  // Of the second step of a run: that of transformers on the same samples, with the weights exported after the first.
  void expect_exported_weights(json run) const {
    run["data"]["shuffle"] = false;
    run["training"]["steps"] = 2;
    const Curve two = curve_of(1, run);
    ASSERT_EQ(two.losses.size(), 3u);
    const fs::path exported = folder() / "exported";
    run["training"]["steps"] = 1;
    run["training"]["export"] = exported.string();
    curve_of(1, run);
    EXPECT_NEAR(two.losses[1], loss_on_step(run, 2, exported), 1e-5);
  }
};

TEST_F(BertFolderTest, TrainsAndComesBack) {
  const fs::path model = folder() / "bert-folder";
  fs::create_directories(model);
  write_file_atomically(
      model / "config.json",
      R"({"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 2, "hidden_size": 24,
          "num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 8, "vocab_size": 60,
          "type_vocab_size": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
          "initializer_range": 0.2})");
  transformers(concat("make ", model.string()));
  json run = bert();
  run["model"] = {{"from", model.string()}, {"mask_token", 59}};
  run["data"]["shuffle"] = false;
  run["training"]["steps"] = 1;
  const Curve one = curve_of(1, run);
  ASSERT_FALSE(one.losses.empty());
  EXPECT_NEAR(one.losses[0], loss_on_step(run, 1, model), 1e-5);
  expect_exported_weights(run);
}

TEST_F(BertFolderTest, AClassifierOfARunFileOpensInTransformers) {
  json run = classifier();
  run["model"]["classes"] = 3;
  expect_exported_weights(run);
}

} // namespace
} // namespace trireme::tools
