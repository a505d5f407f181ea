// "training.lora" and "model.adapter": the same training as plain PyTorch's in every layout (reference_lora.py, whose
// steps are those of PEFT), and adapters exchanged in PEFT's folders.
#include "small_training.h"

#include <tests/support/command.h>
#include <tests/support/folders.h>
#include <tests/support/made_once.h>
#include <tests/support/run_ranks.h>

#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/generate/export_model.h>
#include <trireme/generate/load.h>
#include <trireme/models/options.h>
#include <trireme/monitor/metrics.h>
#include <trireme/train/run_estimate.h>
#include <trireme/train/run_start.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <vector>

namespace trireme::tools {
namespace {

using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kLoraSteps = 20;

struct LoraStep {
  double loss = 0;
  double norm = 0;
};

std::vector<LoraStep> lora_steps(int ranks, const json& run, bool resume = false) {
  on_ranks(ranks, [&](comm::World& world) { run_training(world, run, resume); });
  std::vector<LoraStep> steps;
  for (const monitor::StepMetrics& step : monitor::read_metrics(out() / "metrics.jsonl")) {
    steps.push_back({step.loss.value_or(-1), step.grad_norm.value_or(-1)});
  }
  return steps;
}

std::vector<double> lora_losses(int ranks, const json& run, bool resume = false) {
  std::vector<double> losses;
  for (const LoraStep& step : lora_steps(ranks, run, resume)) {
    losses.push_back(step.loss);
  }
  return losses;
}

checkpoint::Checkpoint trained_checkpoint() {
  return checkpoint::Checkpoint::open(out() / "checkpoints");
}

class LoraRunTest : public SmallTrainingTest {
 protected:
  LoraRunTest() { folder(); } // this process's, not a rank's
  // What PyTorch makes of the script's models.
  static const fs::path& models() {
    static const fs::path made = test::made_once("lora_models", [](const fs::path& folder) {
      const auto [status, output] = python(folder, concat("make ", folder.string(), ' ', kLoraSteps));
      ASSERT_EQ(status, 0) << output;
      write_file_atomically(folder / "curves", output);
    });
    return made;
  }
  static std::pair<int, std::string> python(const fs::path& folder, const std::string& arguments) {
    const std::string log = (folder / "python.log").string();
    return test::run_command(concat('"', test::python(), "\" \"", test::source_dir(),
                                    "/tests/tools/reference_lora.py\" ", arguments, " 2> ", log, " || (cat ", log,
                                    "; exit 1)"));
  }
  static json with_adapter(const std::string& name, const char* more = "{}") {
    json run = {
        {"model", {{"from", models() / name}, {"adapter", models() / (name + "-adapter")}, {"sequence_length", 16}}},
        {"data", {{"type", "tokens"}, {"train", models() / (name + ".tokens")}, {"shuffle", false}}},
        {"training", {{"steps", kLoraSteps}}},
        {"engine",
         {{"train_batch_size", 8},
          {"gradient_clipping", 1.0},
          {"optimizer",
           {{"type", "AdamW"}, {"params", {{"lr", 3e-3}, {"betas", {0.9, 0.95}}, {"weight_decay", 0.1}}}}}}}};
    if (name == "bert") {
      run["data"].update({{"type", "labelled_text"}, {"train", models() / "bert.jsonl"}, {"tokenizer", "bytes"}});
    }
    run.merge_patch(json::parse(more));
    return run;
  }
  // A copy of a base model with other values.
  static fs::path with_weights(const std::string& name, const std::string& end,
                               const std::function<at::Tensor(const at::Tensor&)>& change) {
    fs::path copy = models() / concat(name, '-', end);
    fs::remove_all(copy);
    fs::copy(models() / name, copy);
    std::vector<checkpoint::NamedTensor> tensors;
    const auto file = checkpoint::Safetensors::open(models() / name / "model.safetensors");
    for (const checkpoint::TensorInfo& tensor : file.tensors()) {
      tensors.push_back({tensor.name, change(file.tensor(tensor.name))});
    }
    checkpoint::write_safetensors(copy / "model.safetensors", tensors, file.metadata());
    return copy;
  }
  static void expect_curve(const std::string& name, const std::vector<LoraStep>& steps) {
    std::istringstream lines(read_file(models() / "curves"));
    std::string which;
    size_t i = 0;
    for (LoraStep step; lines >> which >> step.loss >> step.norm;) {
      if (which == name) {
        ASSERT_LT(i, steps.size());
        EXPECT_NEAR(steps[i].loss, step.loss, 1e-4 * step.loss) << "step " << i + 1;
        EXPECT_NEAR(steps[i].norm, step.norm, 1e-3 * step.norm) << "step " << i + 1;
        ++i;
      }
    }
    EXPECT_EQ(i, kLoraSteps);
  }
};

// From nothing: no Hugging Face folder, A random and B zero.
json fresh_lora(const std::string& type, const json& lora, const char* more = "{}") {
  json run = common();
  run["model"]["type"] = type;
  run["model"]["layers"] = 2;
  run["training"]["steps"] = 6;
  run["training"]["lora"] = lora;
  run.merge_patch(json::parse(more));
  return run;
}

TEST_F(LoraRunTest, TrainsAsPyTorchInEveryLayout) {
  for (const auto& [name, ranks, layout] : std::vector<std::tuple<std::string, int, const char*>>{
           {"gpt2", 1, "{}"},
           {"llama", 1, "{}"},
           {"bert", 1, "{}"},
           {"bert", 2, R"({"parallel": {"tensor": 2}})"},
           {"bert", 2, R"({"parallel": {"pipe": 2}, "engine": {"gradient_accumulation_steps": 2}})"},
           {"llama", 2, R"({"engine": {"zero_optimization": {"stage": 0}}})"},
           {"llama", 2, R"({"engine": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}})"},
           {"llama", 2, R"({"parallel": {"pipe": 2}, "engine": {"gradient_accumulation_steps": 2}})"},
           {"gpt2", 2,
            R"({"parallel": {"pipe": 2, "schedule": "zero-bubble"}, "engine": {"gradient_accumulation_steps": 2}})"},
           {"gpt2", 2, R"({"parallel": {"tensor": 2}})"},
           {"llama", 2, R"({"parallel": {"tensor": 2, "sequence_parallel": true}})"},
           {"llama", 2,
            R"({"parallel": {"context": 2}, "engine": {"activation_checkpointing": {"policy": "recompute"}}})"}}) {
    SCOPED_TRACE(concat(name, ' ', layout));
    expect_curve(name, lora_steps(ranks, with_adapter(name, layout)));
  }
}

TEST_F(LoraRunTest, AdaptersComeBackToPeft) {
  for (const auto& [name, ranks, layout] : std::vector<std::tuple<std::string, int, const char*>>{
           {"gpt2", 2, R"({"parallel": {"tensor": 2}})"},
           {"llama", 1, "{}"},
           {"bert", 2, R"({"engine": {"zero_optimization": {"stage": 3}}})"}}) {
    SCOPED_TRACE(name);
    json run = with_adapter(name, layout);
    const fs::path adapter = models() / (name + "-exported");
    const fs::path merged = models() / (name + "-merged");
    fs::remove_all(adapter);
    fs::remove_all(merged);
    run["training"]["export"] = adapter;
    lora_steps(ranks, run);
    on_ranks(1, [&](comm::World&) {
      const generate::Exported whole = generate::export_model(out(), merged, std::nullopt, /*merge=*/true);
      EXPECT_FALSE(whole.is_adapter);
      if (name == "bert") { // generates nothing
        return;
      }
      // Generation merges them too, from wherever they are.
      const at::Tensor tokens = at::arange(32).view({2, 16});
      const at::Tensor expected = generate::load(merged).model.forward(tokens);
      const fs::path base = models() / name;
      for (const auto& [from, with] : {std::pair(out(), fs::path()), {base, adapter}, {adapter, fs::path()}}) {
        const at::Tensor logits = generate::load(from, with).model.forward(tokens);
        EXPECT_LT((logits - expected).abs().max().item<double>(), 1e-5) << from << ' ' << with;
      }
      EXPECT_GT((generate::load(base).model.forward(tokens) - expected).abs().max().item<double>(), 1e-2);
      const auto refusal_of = [](const fs::path& from, const fs::path& with) {
        try {
          generate::load(from, with);
        } catch (const InputError& error) {
          return std::string(error.what());
        }
        return std::string("accepted");
      };
      EXPECT_THAT(refusal_of(out(), adapter), HasSubstr("is of a run with adapters, which already count"));
      EXPECT_THAT(refusal_of(adapter, adapter), HasSubstr("is a folder of PEFT with adapters, which already count"));
      const fs::path half = with_weights(name, "half", [](const at::Tensor& value) { return value.to(at::kHalf); });
      EXPECT_LT((generate::load(half, adapter).model.forward(tokens) - expected).abs().max().item<double>(), 0.1);
      const fs::path other = with_weights(name, "other", [](const at::Tensor& value) { return value * 1.05; });
      EXPECT_THAT(refusal_of(other, adapter), HasSubstr("the base model's weights are not those it was trained on"));
    });
  }
  // The exported folder goes on as the merged model, whose classifier is the exported one.
  json merged = with_adapter("bert", R"({"training": {"steps": 1}, "model": {"adapter": null}})");
  merged["model"]["from"] = models() / "bert-merged";
  json adapted = with_adapter("bert", R"({"training": {"steps": 1}})");
  adapted["model"]["adapter"] = models() / "bert-exported";
  EXPECT_NEAR(lora_losses(1, adapted).at(0), lora_losses(1, merged).at(0), 1e-6);
  const auto [status, output] = python(models(), concat("compare ", models().string()));
  ASSERT_EQ(status, 0) << output;
  std::istringstream lines(output);
  size_t count = 0;
  std::string name;
  for (double adapters = 1, logits = 1; lines >> name >> adapters >> logits; ++count) {
    EXPECT_LT(adapters, 1e-3) << name;
    EXPECT_LT(logits, 1e-5) << name;
  }
  EXPECT_EQ(count, 3u);
}

// What tells is the sample in an adapter of ours; PEFT's have none, only the base model's name.
TEST_F(LoraRunTest, AnotherNameIsNotedWhereNoSampleTells) {
  const fs::path adapter = models() / "gpt2-noted";
  fs::remove_all(adapter);
  json run = with_adapter("gpt2", R"({"training": {"steps": 1}})");
  run["training"]["export"] = adapter;
  lora_steps(1, run);
  run["training"].erase("export");
  on_ranks(1, [&](comm::World&) {
    run["model"]["from"] = with_weights("gpt2", "renamed", [](const at::Tensor& value) { return value; });
    config::RunConfig of_peft = read(run);
    const size_t before = of_peft.notes.size();
    train::note_other_base(of_peft);
    ASSERT_EQ(of_peft.notes.size(), before + 1);
    EXPECT_THAT(of_peft.notes.back(), AllOf(HasSubstr("gpt2-adapter was trained on "), HasSubstr("gpt2-renamed")));
    run["model"]["adapter"] = adapter;
    config::RunConfig ours = read(run);
    train::note_other_base(ours);
    EXPECT_EQ(ours.notes.size(), before);
  });
}

// Without a folder to begin with: initial values and norms do not depend on the layout. (Masks of dropout do.)
TEST_F(LoraRunTest, BeginsWithTheSameValuesInEveryLayout) {
  const json lora = {{"rank", 3}, {"alpha", 12}, {"targets", "proj|c_fc"}};
  for (const char* const type : {"gpt", "llama"}) {
    const std::vector<double> one = lora_losses(1, fresh_lora(type, lora));
    ASSERT_EQ(one.size(), 6u);
    EXPECT_LT(one.back(), one.front());
    for (const char* const layout : {R"({"parallel": {"tensor": 2}})",
                                     R"({"parallel": {"pipe": 2}, "engine": {"gradient_accumulation_steps": 2}})"}) {
      SCOPED_TRACE(concat(type, layout));
      const std::vector<double> losses = lora_losses(2, fresh_lora(type, lora, layout));
      ASSERT_EQ(losses.size(), one.size());
      for (size_t step = 0; step < one.size(); ++step) {
        EXPECT_NEAR(losses[step], one[step], 1e-5 * one[step]) << "step " << step;
      }
    }
  }
}

TEST_F(LoraRunTest, OnlyAdaptersAreTrainedAndHaveStates) {
  const json run = fresh_lora("llama", {{"rank", 2}, {"targets", "q_proj"}, {"dropout", 0.2}},
                              R"({"training": {"freeze": "1.*lora_A"}})");
  json first = run;
  first["training"]["steps"] = 1;
  first["engine"]["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 0}}}};
  lora_losses(2, first);
  std::map<std::string, std::string> before;
  for (const std::string& name : trained_checkpoint().names("parameter")) {
    before[name] = digest(trained_checkpoint().read(name));
  }
  lora_losses(2, run);
  std::set<std::string> trained;
  for (const std::string& name : trained_checkpoint().names("parameter")) {
    if (digest(trained_checkpoint().read(name)) != before.at(name)) {
      trained.insert(name);
    }
  }
  const std::string layer = "model.layers.0.self_attn.q_proj.";
  EXPECT_EQ(trained, (std::set<std::string>{layer + "lora_A.weight", layer + "lora_B.weight",
                                            "model.layers.1.self_attn.q_proj.lora_B.weight"}));
  for (const std::string& name : trained_checkpoint().names("optimizer")) {
    EXPECT_TRUE(std::any_of(trained.begin(), trained.end(), [&](const auto& known) { return name.ends_with(known); }))
        << name;
  }
  const plan::RunEstimate estimated = train::describe_run(read(run), 2);
  EXPECT_EQ(estimated.trained, 2 * 16 + 2 * 16 + 2 * 16);
  EXPECT_EQ(static_cast<size_t>(estimated.parameters), [&] {
    int64_t all = 0;
    for (const std::string& name : trained_checkpoint().names("parameter")) {
      all += trained_checkpoint().read(name).numel();
    }
    return static_cast<size_t>(all);
  }());
}

// Recomputation repeats dropout's masks, and so does a resumed run, to the bit.
TEST_F(LoraRunTest, RepeatsDropoutToTheBit) {
  const json lora = {{"rank", 2}, {"dropout", 0.3}};
  const std::vector<double> whole = lora_losses(2, fresh_lora("gpt", lora));
  EXPECT_EQ(
      lora_losses(2, fresh_lora("gpt", lora, R"({"engine": {"activation_checkpointing": {"policy": "recompute"}}})")),
      whole);
  EXPECT_NE(lora_losses(2, fresh_lora("gpt", {{"rank", 2}})), whole);
  for (const char* const layout :
       {R"({"engine": {"zero_optimization": {"stage": 3}}})", R"({"parallel": {"tensor": 2}})"}) {
    SCOPED_TRACE(layout);
    const json run = fresh_lora("llama", lora, layout);
    const std::vector<double> uninterrupted = lora_losses(2, run);
    json half = run;
    half["training"]["steps"] = 3;
    lora_losses(2, half);
    EXPECT_EQ(lora_losses(2, run, /*resume=*/true), uninterrupted);
  }
}

// Shapes would not tell: W + (alpha / rank) B A would be another model.
TEST_F(LoraRunTest, ARunContinuesWithItsAlphaOnly) {
  json run = fresh_lora("llama", {{"rank", 2}, {"alpha", 16}}, R"({"training": {"steps": 2}})");
  lora_losses(1, run);
  run["training"]["steps"] = 3;
  json other = run;
  other["training"]["lora"]["alpha"] = 32;
  const std::vector<std::string> lines =
      run_ranks(1, [&](comm::World& world) { run_training(world, other, /*resume=*/true); });
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.front(), AllOf(HasSubstr("training.lora.alpha is 32, but the adapters of "),
                                   HasSubstr("global_step2 were trained with 16. Set it to 16")));
  run["training"]["lora"]["dropout"] = 0.1;
  EXPECT_EQ(lora_losses(1, run, /*resume=*/true).size(), 3u);
}

TEST_F(LoraRunTest, BadInputIsRefusedInOneSentence) {
  const auto refusal = [](const json& run) {
    const std::vector<std::string> lines = run_ranks(1, [&](comm::World& world) { run_training(world, run); });
    return lines.empty() ? std::string("accepted") : lines.front();
  };
  EXPECT_THAT(refusal(fresh_lora("gpt", {{"targets", {"c_attn", "q_proj"}}})),
              AllOf(HasSubstr("training.lora.targets[1]: \"q_proj\" matches no linear layer of the model's blocks"),
                    HasSubstr("They have: attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj.")));
  EXPECT_THAT(refusal(fresh_lora("llama", {{"targets", "embed_tokens"}})), HasSubstr("matches no linear layer"));
  EXPECT_THAT(refusal(fresh_lora("llama", {{"targets", "(q"}})), HasSubstr("is not a regular expression"));
  EXPECT_THAT(refusal(fresh_lora("llama", {{"rank", 0}})), HasSubstr("training.lora.rank"));
  EXPECT_THAT(refusal(fresh_lora("llama", {{"dropout", 1}})), HasSubstr("training.lora.dropout"));
  json cnn = fresh_lora("cnn", {{"rank", 2}}, R"({"model": null})");
  cnn["model"] = {{"type", "cnn"}, {"side", 8}};
  cnn["data"] = {{"type", "images"}, {"train", images_file("images", 7)}, {"train_labels", labels_file("labels", 3)}};
  EXPECT_THAT(refusal(cnn), HasSubstr("training.lora: only a gpt, llama or bert can have adapters"));
  json exported = fresh_lora("llama", {{"rank", 2}});
  exported["training"]["export"] = (folder() / "exported").string();
  EXPECT_THAT(refusal(exported), HasSubstr("training.export: adapters are exported for a base model"));
  json all = fresh_lora("llama", {{"rank", 2}});
  all["training"]["freeze"] = "lora";
  EXPECT_THAT(refusal(all), HasSubstr("match all adapters of the model, so nothing is left to train"));

  // Adapters of another base.
  json other = with_adapter("gpt2");
  other["model"]["adapter"] = models() / "llama-adapter";
  EXPECT_THAT(refusal(other), AllOf(HasSubstr("target_modules: the model has no such linear layer in its blocks"),
                                    HasSubstr("belongs to another base model")));
  json narrow = fresh_lora("llama", nullptr);
  narrow["model"]["adapter"] = models() / "llama-adapter";
  EXPECT_THAT(refusal(narrow), AllOf(HasSubstr("has shape"), HasSubstr("belongs to another base model")));
  narrow["model"].update({{"hidden", 32}, {"heads", 4}, {"kv_heads", 2}, {"intermediate", 72}, {"layers", 1}});
  EXPECT_THAT(refusal(narrow), HasSubstr("the model has no place for the tensor"));
  narrow["model"]["layers"] = 3;
  EXPECT_THAT(refusal(narrow), HasSubstr("there is no tensor"));
  json rank = with_adapter("llama");
  rank["training"]["lora"] = {{"rank", 5}};
  EXPECT_THAT(refusal(rank),
              AllOf(HasSubstr("training.lora.rank: rank is 5, but that of model.adapter"), HasSubstr("is 4")));
  json missing = with_adapter("llama");
  missing["model"]["adapter"] = models() / "llama";
  EXPECT_THAT(refusal(missing), HasSubstr("adapter_config.json, which a PEFT folder has"));
}

} // namespace
} // namespace trireme::tools
