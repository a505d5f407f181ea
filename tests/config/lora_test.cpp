// "training.lora" and PEFT's adapter_config.json: which layers have adapters, and what is refused.
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/config/adapter_config.h>
#include <trireme/config/run_file.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <filesystem>

namespace trireme::config {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class LoraTest : public testing::Test {
 protected:
  LoraTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_lora_", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~LoraTest() override { fs::remove_all(folder_); }

  void write(const json& changes) const {
    json config = {{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 6}, {"target_modules", {"q_proj", "v_proj"}}};
    config.merge_patch(changes);
    write_file_atomically(folder_ / kAdapterConfig, config.dump());
  }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

json lora_run_of(const json& lora, const char* type = "llama") {
  return {{"model", {{"type", type}, {"layers", 2}, {"vocab_size", 50}}},
          {"data", {{"type", "text"}, {"train", "train.txt"}, {"tokenizer", "bytes"}}},
          {"training", {{"steps", 10}, {"lora", lora}}},
          {"engine", {{"train_batch_size", 8}, {"optimizer", {{"type", "AdamW"}}}}}};
}

RunConfig read_lora_run(json run) {
  run["model"]["vocab_size"] = 300;
  return read_run(JsonNode::parse(run.dump(2), "run.json"), "/");
}

template <typename Action>
std::string lora_refusal(const Action& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<models::LayerShape> llama_layers() {
  models::LlamaOptions options;
  options.layers = 2;
  return models::layer_shapes(options);
}

std::vector<models::LayerShape> bert_layers(models::BertOptions::Head head) {
  models::BertOptions options;
  options.layers = 2;
  options.head = head;
  return models::bert_layer_shapes(options);
}

TEST_F(LoraTest, TargetsAreSearchedForInNamesOfLinearLayers) {
  const models::LoraOptions lora = read_lora_run(lora_run_of({{"targets", {R"(0.*q_proj)", "up"}}})).model.lora();
  EXPECT_THAT(lora.layers, ElementsAre("model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj",
                                       "model.layers.1.mlp.up_proj"));
  EXPECT_EQ(lora.rank, 8);
  EXPECT_EQ(lora.scale(), 2);
  EXPECT_THAT(read_lora_run(lora_run_of(json::object(), "gpt")).model.lora().layers,
              ElementsAre("transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"))
      << "PEFT's defaults";
  EXPECT_EQ(read_lora_run(lora_run_of(json::object())).model.lora().layers.size(), 4u);
  EXPECT_EQ(read_lora_run(lora_run_of({{"targets", "."}})).model.lora().layers.size(), 14u);
  EXPECT_FALSE(read_lora_run(lora_run_of(nullptr)).model.lora().on());
}

TEST_F(LoraTest, WhatIsWrittenIsReadAgain) {
  const RunConfig run =
      read_lora_run(lora_run_of({{"rank", 3}, {"alpha", 4.5}, {"dropout", 0.1}, {"targets", "proj"}}));
  EXPECT_EQ(json(run.resolved["training"]["lora"]),
            (json{{"rank", 3}, {"alpha", 4.5}, {"dropout", 0.1}, {"targets", {"proj"}}}));
  EXPECT_EQ(read_lora_run(run.resolved).model.lora().layers, run.model.lora().layers);
  EXPECT_EQ(frozen_of_all(run.training.freeze, {"a.q_proj.weight", "a.q_proj.lora_A.weight", "a.q_proj.lora_B.weight"}),
            (std::vector<bool>{true, false, false}));

  write(json::object());
  json adapted = lora_run_of(nullptr);
  adapted["model"]["adapter"] = folder();
  const RunConfig with = read_lora_run(adapted);
  EXPECT_EQ(with.model.lora().layers.size(), 4u);
  fs::remove(folder() / kAdapterConfig);
  fs::remove(folder());
  EXPECT_EQ(read_lora_run(with.resolved).model.lora().layers, with.model.lora().layers)
      << "a resumed run needs the folder no more";
}

TEST_F(LoraTest, EndingsNameExactlyTheAdaptedLayers) {
  const std::vector<std::string> all = {"h.0.attn.c_proj", "h.0.mlp.c_proj", "h.1.attn.c_proj", "h.1.mlp.c_proj"};
  EXPECT_THAT(target_endings({all.begin(), all.end()}, all), ElementsAre("c_proj"));
  EXPECT_THAT(target_endings({all[0], all[2]}, all), ElementsAre("attn.c_proj"));
  EXPECT_THAT(target_endings({all[0], all[3]}, all), ElementsAre("0.attn.c_proj", "1.mlp.c_proj"));
  EXPECT_THAT(target_endings({"c_proj"}, {"c_proj"}), ElementsAre("c_proj"));
}

TEST_F(LoraTest, ReadsWhatPeftWrites) {
  write({{"lora_dropout", 0.25},
         {"bias", "none"},
         {"rank_pattern", json::object()},
         {"modules_to_save", nullptr},
         {"init_lora_weights", true},
         {"something_new", 3}});
  const models::LoraOptions lora = read_adapter_config(folder(), llama_layers());
  EXPECT_EQ(lora.rank, 4);
  EXPECT_EQ(lora.scale(), 1.5);
  EXPECT_EQ(lora.dropout, 0.25);
  EXPECT_EQ(lora.layers.size(), 4u);
  write({{"use_rslora", true}});
  EXPECT_EQ(read_adapter_config(folder(), llama_layers()).scale(), 3) << "alpha by the root of the rank";
  write({{"target_modules", "all-linear"}});
  EXPECT_EQ(read_adapter_config(folder(), llama_layers()).layers.size(), 14u);
  write({{"target_modules", R"(model\.layers\.\d+\.mlp\..*)"}});
  EXPECT_EQ(read_adapter_config(folder(), llama_layers()).layers.size(), 6u);
  write({{"target_modules", R"(mlp\..*)"}});
  EXPECT_THAT(lora_refusal([&] { read_adapter_config(folder(), llama_layers()); }), HasSubstr("no such linear layer"))
      << "PEFT compares full names with an expression";
}

// The names and numbers by which PEFT narrows target_modules.
TEST_F(LoraTest, PeftMayLeaveOutBlocksAndLayers) {
  const auto layers = [&](const json& changes) {
    write(changes);
    return read_adapter_config(folder(), llama_layers()).layers;
  };
  constexpr const char* kQuery = "model.layers.1.self_attn.q_proj";
  constexpr const char* kValue = "model.layers.1.self_attn.v_proj";
  EXPECT_THAT(layers({{"layers_to_transform", {1}}}), ElementsAre(kQuery, kValue));
  EXPECT_THAT(layers({{"layers_to_transform", 1}, {"exclude_modules", {"v_proj"}}}), ElementsAre(kQuery));
  EXPECT_THAT(layers({{"exclude_modules", R"(model\.layers\.0\..*)"}}), ElementsAre(kQuery, kValue));
  EXPECT_EQ(layers({{"exclude_modules", "v_proj"}}).size(), 4u) << "an expression for the full name";
  EXPECT_EQ(layers({{"layers_to_transform", json::array()}, {"exclude_modules", json::array()}}).size(), 4u);
  for (const json& pattern : {json("layers"), json({"layers"}), json(""), json::array()}) {
    EXPECT_THAT(layers({{"layers_to_transform", {1}}, {"layers_pattern", pattern}}), ElementsAre(kQuery, kValue));
  }
  EXPECT_THAT(lora_refusal([&] { layers({{"layers_to_transform", {1}}, {"layers_pattern", {"layers", "h"}}}); }),
              AllOf(HasSubstr("layers_pattern[1]: this model's blocks are \"layers\", not \"h\""),
                    HasSubstr("write \"layers\"")));
  EXPECT_THAT(lora_refusal([&] { layers({{"layers_to_transform", {2}}}); }), HasSubstr("no such linear layer"));
  EXPECT_THAT(lora_refusal([&] { layers({{"layers_to_transform", {"1"}}}); }), HasSubstr("layers_to_transform[0]"));
}

// PEFT trains the head of a SEQ_CLS model in full and saves it with the adapters.
TEST_F(LoraTest, AClassifierIsTrainedBesideTheAdaptersOfABert) {
  using Head = models::BertOptions::Head;
  json run = lora_run_of(json::object(), "bert");
  run["model"]["head"] = "classes";
  run["data"]["type"] = "labelled_text";
  const RunConfig read = read_lora_run(run);
  EXPECT_THAT(read.model.lora().layers,
              ElementsAre("bert.encoder.layer.0.attention.self.query", "bert.encoder.layer.0.attention.self.value",
                          "bert.encoder.layer.1.attention.self.query", "bert.encoder.layer.1.attention.self.value"));
  EXPECT_EQ(frozen_of_all(read.training.freeze, {"bert.pooler.dense.weight", "classifier.weight", "classifier.bias"}),
            (std::vector<bool>{true, false, false}));
  const json written = write_adapter_config(read.model, "minilm");
  EXPECT_EQ(written["task_type"], "SEQ_CLS");
  EXPECT_EQ(written["modules_to_save"], json({"classifier"}));
  EXPECT_EQ(written["target_modules"], json({"query", "value"}));

  run["training"]["lora"]["targets"] = ".";
  EXPECT_EQ(write_adapter_config(read_lora_run(run).model, "minilm")["target_modules"],
            json({"intermediate.dense", "key", "output.dense", "query", "value"}))
      << "\"dense\" is the pooler's, too";

  write({{"target_modules", {"query", "output.dense"}}, {"modules_to_save", {"classifier", "score"}}});
  const models::LoraOptions lora = read_adapter_config(folder(), bert_layers(Head::classes));
  EXPECT_EQ(lora.layers.size(), 6u) << "attention.output.dense ends so, too";
  EXPECT_THAT(lora.whole_layers, ElementsAre("classifier"));
  EXPECT_THAT(lora_refusal([&] { read_adapter_config(folder(), bert_layers(Head::masked_lm)); }),
              HasSubstr("modules_to_save[0]: \"classifier\" in full cannot be had beside adapters"));
  write({{"target_modules", {"query"}}, {"modules_to_save", {"pooler"}}});
  EXPECT_THAT(lora_refusal([&] { read_adapter_config(folder(), bert_layers(Head::classes)); }),
              HasSubstr("modules_to_save[0]: \"pooler\""));

  json masked = lora_run_of(json::object(), "bert");
  EXPECT_TRUE(read_lora_run(masked).model.lora().whole_layers.empty());
  EXPECT_TRUE(write_adapter_config(read_lora_run(masked).model, "")["task_type"].is_null());
}

TEST_F(LoraTest, RefusesWhatCannotBeMeant) {
  const auto refused = [&](const json& changes) {
    write(changes);
    return lora_refusal([&] { read_adapter_config(folder(), llama_layers()); });
  };
  EXPECT_THAT(refused({{"use_dora", true}}), AllOf(HasSubstr("adapter_config.json:1:"), HasSubstr("use_dora")));
  EXPECT_THAT(refused({{"bias", "all"}}), HasSubstr("bias"));
  EXPECT_THAT(refused({{"rank_pattern", {{"q_proj", 2}}}}), HasSubstr("rank_pattern"));
  EXPECT_THAT(refused({{"modules_to_save", {"lm_head"}}}), HasSubstr("modules_to_save"));
  EXPECT_THAT(refused({{"peft_type", "IA3"}}), HasSubstr("only adapters of peft_type \"LORA\""));
  EXPECT_THAT(refused({{"init_lora_weights", "pissa"}}), HasSubstr("changes the base model's weights too"));
  EXPECT_THAT(refused({{"r", 0}}), HasSubstr("the rank must be from 1 to"));
  EXPECT_THAT(refused({{"r", nullptr}}), HasSubstr("\"r\" is missing"));
  EXPECT_THAT(refused({{"lora_alpha", -1}}), HasSubstr("must be above 0"));
  EXPECT_THAT(refused({{"lora_dropout", 1}}), HasSubstr("from 0 to below 1"));
  EXPECT_THAT(refused({{"target_modules", {"c_attn"}}}), HasSubstr("belongs to another base model"));
  EXPECT_THAT(refused({{"target_modules", {"lm_head", "embed_tokens"}}}),
              HasSubstr("embeddings and heads have no adapters"));
  EXPECT_THAT(refused({{"target_modules", "(q"}}), HasSubstr("regular expression"));
  EXPECT_THAT(refused({{"target_modules", std::string(2000, '(')}}), HasSubstr("more than 1000 characters"));

  const auto run_refused = [](const json& run) { return lora_refusal([&] { read_lora_run(run); }); };
  EXPECT_THAT(run_refused(lora_run_of({{"targets", {"q_proj", "q_prj"}}})),
              AllOf(HasSubstr("training.lora.targets[1]: \"q_prj\" matches no linear layer"), HasSubstr("run.json:"),
                    HasSubstr("They have: mlp.down_proj, mlp.gate_proj, mlp.up_proj, self_attn.k_proj,")));
  EXPECT_THAT(run_refused(lora_run_of({{"targets", "lm_head"}})), HasSubstr("matches no linear layer"));
  EXPECT_THAT(run_refused(lora_run_of({{"targets", json::array()}})),
              HasSubstr("training.lora.targets: an empty list adapts no layer"));
  json served = lora_run_of({{"rank", 2}});
  served["parallel"]["sync"]["kind"] = "server";
  EXPECT_THAT(run_refused(served), HasSubstr("parallel.sync.kind"));
}

} // namespace
} // namespace trireme::config
