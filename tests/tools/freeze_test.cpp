// "training.freeze" in `trireme train`: the same training in every layout, in which what is frozen keeps its bits and
// has no optimizer state.
#include "small_training.h"

#include <tests/support/run_ranks.h>

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/config/freeze.h>
#include <trireme/monitor/metrics.h>
#include <trireme/train/run_estimate.h>

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <vector>

namespace trireme::tools {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kSteps = 6;

json gpt(const json& freeze, const std::string& more = "{}") {
  json run = common();
  run["model"]["layers"] = 3;
  run["training"]["steps"] = kSteps;
  run["training"]["freeze"] = freeze;
  run["engine"]["zero_optimization"] = {{"stage3_param_persistence_threshold", 40}};
  run.merge_patch(json::parse(more));
  return run;
}

// Embeddings, a whole block, and some of another.
const json kSome = {"wte", "wpe", R"(h\.0\.)", R"(h\.2\.(attn|ln_1))"};

std::vector<double> losses_of(int ranks, const json& run) {
  on_ranks(ranks, [&](comm::World& world) { run_training(world, run); });
  std::vector<double> losses;
  for (const monitor::StepMetrics& step : monitor::read_metrics(out() / "metrics.jsonl")) {
    losses.push_back(step.loss.value_or(-1));
  }
  return losses;
}

checkpoint::Checkpoint saved() {
  return checkpoint::Checkpoint::open(out() / "checkpoints");
}

// The parameters of a checkpoint by name, and whether the run froze them.
std::map<std::string, bool> frozen_in(const checkpoint::Checkpoint& checkpoint, const json& run) {
  const std::vector<std::string> names = checkpoint.names("parameter");
  const std::vector<bool> frozen = config::frozen_of_all(read(run).training.freeze, names);
  std::map<std::string, bool> out;
  for (size_t i = 0; i < names.size(); ++i) {
    out[names[i]] = frozen[i];
  }
  return out;
}

// What is frozen has its first bits, what is trained has others; only that has states and masters.
void expect_frozen(const json& run, const std::map<std::string, std::string>& first, size_t count) {
  const auto checkpoint = saved();
  size_t frozen_count = 0;
  std::string states;
  for (const char* const kind : {"optimizer", "master"}) {
    for (const std::string& name : checkpoint.names(kind)) {
      states += name + '\n';
    }
  }
  for (const auto& [name, frozen] : frozen_in(checkpoint, run)) {
    frozen_count += frozen ? 1 : 0;
    EXPECT_EQ(digest(checkpoint.read(name)) == first.at(name), frozen) << name;
    EXPECT_EQ(states.find(name) == std::string::npos, frozen) << name << " in\n" << states;
  }
  EXPECT_EQ(frozen_count, count);
}

// Of a run that changes nothing.
std::map<std::string, std::string> first_values(json run, int ranks = 1) {
  run["training"]["steps"] = 1;
  run["engine"]["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 0}}}};
  losses_of(ranks, run);
  const auto checkpoint = saved();
  std::map<std::string, std::string> values;
  for (const std::string& name : checkpoint.names("parameter")) {
    values[name] = digest(checkpoint.read(name));
  }
  return values;
}

// An estimate knows what is frozen by the same names, before there are ranks.
void expect_names_of_estimate(const json& run, int ranks) {
  std::set<std::string> names;
  int64_t trained = 0;
  const plan::RunEstimate described = train::describe_run(read(run), ranks);
  for (const estimate::Layer& layer : described.run.model.layers) {
    for (const estimate::Parameter& parameter : layer.parameters) {
      trained += names.insert(concat(layer.name, '.', parameter.name)).second && parameter.trained ? 1 : 0;
    }
  }
  const auto frozen = frozen_in(saved(), run);
  EXPECT_EQ(names.size(), frozen.size());
  for (const auto& [name, is_frozen] : frozen) {
    EXPECT_TRUE(names.contains(name)) << name;
    trained -= is_frozen ? 0 : 1;
  }
  EXPECT_EQ(trained, 0);
}

class FreezeRunTest : public SmallTrainingTest {};

TEST_F(FreezeRunTest, IsTheSameTrainingInEveryLayout) {
  const auto first = first_values(gpt(json::array()));
  const size_t frozen = 2 + 12 + 4 + 2;
  const std::vector<double> one = losses_of(1, gpt(kSome));
  ASSERT_EQ(one.size(), kSteps);
  expect_frozen(gpt(kSome), first, frozen);
  EXPECT_NE(one.back(), losses_of(1, gpt(json::array())).back());
  for (const char* layout :
       {R"({"engine": {"zero_optimization": {"stage": 0}}})", R"({"engine": {"zero_optimization": {"stage": 1}}})",
        R"({"engine": {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 2}})",
        R"({"engine": {"zero_optimization": {"stage": 3}}})", R"({"parallel": {"tensor": 2}})",
        R"({"parallel": {"context": 2}})", R"({"parallel": {"pipe": 2}, "engine": {"gradient_accumulation_steps": 2}})",
        R"({"engine": {"pipeline": {"activation_checkpoint_interval": 2}, "zero_optimization": {"stage": 3}}})",
        R"({"engine": {"activation_checkpointing": {"policy": "recompute"}}})"}) {
    SCOPED_TRACE(layout);
    const json run = gpt(kSome, layout);
    const std::vector<double> losses = losses_of(2, run);
    ASSERT_EQ(losses.size(), kSteps);
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]) << "step " << step;
    }
    expect_frozen(run, first, frozen);
  }
}

// Four ranks, as two stages of two with sharded layers: the first trains nothing, so no gradient comes to it.
TEST_F(FreezeRunTest, AStageMayTrainNothing) {
  const json last = {R"(^(?!transformer\.(h\.2|ln_f)))"};
  const auto first = first_values(gpt(json::array()));
  const std::vector<double> one = losses_of(1, gpt(last));
  for (const char* layout :
       {R"({"parallel": {"pipe": 2}, "engine": {"gradient_accumulation_steps": 2}})",
        R"({"parallel": {"pipe": 2, "schedule": "zero-bubble"}, "engine": {"gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": 3}, "pipeline": {"activation_checkpoint_interval": 1}}})"}) {
    SCOPED_TRACE(layout);
    const json run = gpt(last, layout);
    const std::vector<double> losses = losses_of(4, run);
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]) << "step " << step;
    }
    expect_frozen(run, first, 2 + 2 * 12);
  }
}

TEST_F(FreezeRunTest, ResumedIsUninterruptedBitForBit) {
  const std::string files = (folder() / "nvme").string();
  for (const std::string& layout :
       {std::string(R"({"engine": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}})"),
        concat(R"({"engine": {"zero_optimization": {"stage": 3,
                  "offload_optimizer": {"device": "nvme", "nvme_path": ")",
               files, R"("}, "offload_param": {"device": "nvme", "max_in_cpu": 0, "nvme_path": ")", files,
               R"("}}}})")}) {
    SCOPED_TRACE(layout);
    const json run = gpt(kSome, layout);
    const auto first = first_values(gpt(json::array(), layout), 2);
    const std::vector<double> whole = losses_of(2, run);
    json half = run;
    half["training"]["steps"] = kSteps / 2;
    on_ranks(2, [&](comm::World& world) {
      run_training(world, half);
      run_training(world, run, /*resume=*/true);
    });
    std::vector<double> resumed;
    for (const monitor::StepMetrics& step : monitor::read_metrics(out() / "metrics.jsonl")) {
      resumed.push_back(step.loss.value_or(-1));
    }
    EXPECT_EQ(resumed, whole);
    expect_frozen(run, first, 2 + 12 + 4 + 2);
  }
}

// The oldest way to fine-tune: all but the last layers.
TEST_F(FreezeRunTest, WorksForEveryTypeAndWithAveraging) {
  json bert = gpt({R"(^bert\.)"});
  bert["model"] = {{"type", "bert"},       {"layers", 2},       {"hidden", 16},     {"heads", 2},
                   {"sequence_length", 8}, {"vocab_size", 260}, {"mask_token", 259}};
  json alexnet = gpt({"^features", R"(classifier\.1\.)"});
  alexnet["model"] = {{"type", "alexnet"}, {"channels", 1}, {"resize", 64}, {"hidden", 16}};
  alexnet["data"] = {
      {"type", "images"}, {"train", images_file("images", 7)}, {"train_labels", labels_file("labels", 3)}};
  json cnn = alexnet;
  cnn["model"] = {{"type", "cnn"}, {"side", 8}, {"width", 4}};
  cnn["training"]["freeze"] = "conv";
  json averaged = gpt("h.0");
  averaged["parallel"] = {{"sync", {{"kind", "local_sgd"}, {"every", 3}}}};
  for (const auto& [run, ranks, frozen] :
       {std::tuple(bert, 1, 5 + 2 * 16), {alexnet, 1, 12}, {cnn, 2, 4}, {averaged, 2, 12}}) {
    SCOPED_TRACE(run.dump());
    json trained = run;
    trained["training"]["freeze"] = json::array();
    trained.erase("parallel");
    const auto first = first_values(trained, ranks);
    losses_of(ranks, run);
    expect_frozen(run, first, static_cast<size_t>(frozen));
    expect_names_of_estimate(run, ranks);
  }
}

TEST_F(FreezeRunTest, AnExportedFolderHasFrozenBits) {
  json run = gpt({"layers.0", "embed_tokens"});
  run["model"]["type"] = "llama";
  run["training"]["export"] = (folder() / "exported").string();
  json nothing = run;
  nothing["training"].erase("freeze");
  nothing["training"].erase("export");
  const auto first = first_values(nothing);
  losses_of(1, run);
  const auto exported = checkpoint::Safetensors::open(folder() / "exported/model.safetensors");
  size_t frozen_count = 0;
  for (const auto& [name, frozen] : frozen_in(saved(), run)) {
    frozen_count += frozen ? 1 : 0;
    EXPECT_EQ(digest(exported.tensor(name)) == first.at(name), frozen) << name;
  }
  EXPECT_EQ(frozen_count, 1 + 9);
}

// On every rank, also of a stage that has nothing of what is named.
TEST_F(FreezeRunTest, RefusesWhatCannotBeMeant) {
  const char* const stages = R"({"parallel": {"pipe": 2}, "engine": {"gradient_accumulation_steps": 2}})";
  for (const char* const layout : {"{}", stages}) {
    const auto refused = [&](const json& freeze) {
      const json run = gpt(freeze, layout);
      return run_ranks(2, [&](comm::World& world) { run_training(world, run); });
    };
    EXPECT_THAT(refused({"wte", R"(h\.[3-9])"}),
                Each(AllOf(HasSubstr("training.freeze[1]: \"h\\.[3-9]\" matches no parameter of the model"),
                           HasSubstr("The nearest names are: transformer.h."))));
    EXPECT_THAT(refused("transformer"), Each(HasSubstr("training.freeze: the expressions match all 40 parameters")));
    EXPECT_EQ(refused("transformer").size(), 2u);
  }
}

} // namespace
} // namespace trireme::tools
