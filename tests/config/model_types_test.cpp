// The types alexnet and bert of run files: their keys, what follows from them, and what is refused.
#include <trireme/base/error.h>
#include <trireme/config/run_file.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::config {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

RunConfig read_types(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return read_run(JsonNode::parse(text, "run.json"), "/folder", overrides);
}

std::string refusal_of(const std::string& text, const std::vector<std::string>& overrides) {
  try {
    read_types(text, overrides);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// The resolved file of the resolved file.
nlohmann::ordered_json written_again(const RunConfig& run) {
  return read_run(JsonNode::parse(run.resolved.dump(), "manifest"), "/no/such/folder").resolved;
}

TEST(ModelTypesTest, AlexNetOnImages) {
  const std::string text = R"({
    "model": {"type": "alexnet", "classes": 5, "channels": 1, "resize": 64, "hidden": 32, "dropout": 0.25, "init_from": "images"},
    "data": {"type": "images", "train": "images", "train_labels": "labels"},
    "training": {"steps": 10, "seed": 7},
    "engine": {"train_batch_size": 8, "optimizer": {"type": "SGD"}}
  })";
  const RunConfig run = read_types(text);
  const models::AlexNetOptions& alexnet = run.model.alexnet;
  EXPECT_EQ(run.model.kind, ModelConfig::Kind::alexnet);
  EXPECT_EQ(alexnet.classes, 5);
  EXPECT_EQ(alexnet.channels, 1);
  EXPECT_EQ(alexnet.resize, 64);
  EXPECT_EQ(alexnet.hidden, 32);
  EXPECT_EQ(alexnet.dropout, 0.25);
  EXPECT_EQ(alexnet.init_from, fs::path("/folder/images"));
  EXPECT_EQ(alexnet.seed, 7);
  EXPECT_EQ(run.data.classes, 5);
  EXPECT_TRUE(run.builds_layers());
  EXPECT_EQ(written_again(run), run.resolved);
  EXPECT_EQ(read_types(text, {"parallel.pipe=2"}).pipeline.stages, 2);
  EXPECT_THAT(refusal_of(text, {"model.resize=62"}), HasSubstr("model.resize: images must be enlarged to at least 63"));
  EXPECT_THAT(refusal_of(text, {"parallel.tensor=2"}), HasSubstr("its layers cannot be split"));
  EXPECT_THAT(refusal_of(text, {"data.train_labels=[]"}), HasSubstr("0 files of labels for 1 of images"));
}

constexpr const char* kMaskedText = R"({
  "model": {"type": "bert", "layers": 2, "hidden": 32, "heads": 2, "intermediate": 48, "sequence_length": 16,
            "segments": 3, "dropout": 0.1, "layer_norm_eps": 1e-6, "mask_fraction": 0.2},
  "data": {"type": "text", "train": "train.txt"},
  "training": {"steps": 10},
  "engine": {"train_batch_size": 8, "optimizer": {"type": "AdamW"}}
})";

TEST(ModelTypesTest, BertOnMaskedText) {
  const RunConfig run = read_types(kMaskedText);
  const models::BertOptions& bert = run.model.bert;
  EXPECT_EQ(run.model.kind, ModelConfig::Kind::bert);
  EXPECT_EQ(bert.head, models::BertOptions::Head::masked_lm);
  EXPECT_EQ(bert.vocab_size, 257) << "bytes and a mask token";
  EXPECT_EQ(run.data.vocab_size, 257);
  EXPECT_EQ(bert.intermediate, 48);
  EXPECT_EQ(bert.segments, 3);
  EXPECT_EQ(bert.layer_norm_eps, 1e-6);
  EXPECT_EQ(run.data.sequence_length, 16);
  EXPECT_EQ(run.data.mask_fraction, 0.2);
  EXPECT_EQ(run.data.mask_token, -1);
  EXPECT_EQ(written_again(run), run.resolved);
  EXPECT_EQ(read_types(kMaskedText, {"data.sequence_length=8"}).data.sequence_length, 8);
  for (const char* axis : {"parallel.pipe=2", "parallel.tensor=2", "parallel.context=2"}) {
    EXPECT_EQ(refusal_of(kMaskedText, {axis}), "");
  }
}

TEST(ModelTypesTest, WhatABertCannotDoIsRefused) {
  const auto error = [&](const std::vector<std::string>& overrides) { return refusal_of(kMaskedText, overrides); };
  EXPECT_THAT(error({"data.sequence_length=17"}), HasSubstr("17 exceeds the model's 16, model.sequence_length at"));
  EXPECT_THAT(error({"model.heads=3"}), HasSubstr("heads must divide hidden"));
  EXPECT_THAT(error({"model.vocab_size=256"}), HasSubstr("which has 256 and a mask token"));
  EXPECT_THAT(error({"model.mask_fraction=0"}), HasSubstr("model.mask_fraction: must be above 0"));
  EXPECT_THAT(error({"model.mask_token=300"}), HasSubstr("token 300 is outside of a vocabulary of 256"));
  EXPECT_EQ(read_types(kMaskedText, {"model.mask_token=0"}).model.bert.vocab_size, 256)
      << "a byte that the text does not have";
  EXPECT_THAT(error({"model.classes=3"}), HasSubstr("model.classes: needs the head \"classes\""));
  EXPECT_THAT(error({"model.head=classes"}),
              AllOf(HasSubstr("model.mask_fraction: needs the head \"masked_lm\""), HasSubstr("run.json:3:")));
  EXPECT_THAT(error({"data.type=tokens", "model.vocab_size=60"}), HasSubstr("\"mask_token\" is missing"));
  EXPECT_EQ(error({"data.type=tokens", "model.vocab_size=60", "model.mask_token=59"}), "");
  EXPECT_THAT(error({"data.type=labelled_text"}), HasSubstr("data of type labelled_text"));
  EXPECT_EQ(error({"training.export=out"}), "");
  EXPECT_THAT(error({"parallel.context=3"}), HasSubstr("cannot share 16 tokens evenly"));
}

// Its masks take no notice of what counts, so only "all" is true.
TEST(ModelTypesTest, AMaskedBertCountsAllTokensOfJsonLines) {
  nlohmann::ordered_json lines = nlohmann::ordered_json::parse(kMaskedText);
  lines["data"]["type"] = "jsonl";
  const auto loss_on = [](const RunConfig& run) {
    return run.data.sets.empty() ? run.data.loss_on : run.data.sets[0].data->loss_on;
  };
  nlohmann::ordered_json mixture = lines;
  mixture["data"] = nlohmann::ordered_json::parse(
      R"({"type": "mixture", "tokenizer": "bytes",
          "sets": [{"data": {"type": "jsonl", "train": "a.jsonl"}, "weight": 1}]})");
  for (const nlohmann::ordered_json& json : {lines, mixture}) {
    const std::string key = json["data"].contains("sets") ? "data.sets.0.data.loss_on" : "data.loss_on";
    const RunConfig run = read_types(json.dump());
    EXPECT_EQ(loss_on(run), data::LossOn::all);
    EXPECT_EQ(written_again(run), run.resolved);
    EXPECT_EQ(refusal_of(json.dump(), {key + "=all"}), "");
    EXPECT_THAT(refusal_of(json.dump(), {key + "=response"}),
                AllOf(HasSubstr("loss_on \"response\" with a bert with the head masked_lm: any token may be masked"),
                      HasSubstr("set it to \"all\"")));
    nlohmann::ordered_json gpt = json;
    gpt["model"] = {{"type", "gpt"}, {"layers", 2}, {"hidden", 32}, {"heads", 2}, {"sequence_length", 16}};
    EXPECT_EQ(loss_on(read_types(gpt.dump())), data::LossOn::response);
  }
}

TEST(ModelTypesTest, BertOnLabelledText) {
  const std::string text = R"({
    "model": {"type": "bert", "sequence_length": 16, "head": "classes", "classes": 3},
    "data": {"type": "labelled_text", "train": "train.txt", "validation": "validation.txt", "sequence_length": 8},
    "training": {"steps": 10},
    "engine": {"train_batch_size": 8, "optimizer": {"type": "AdamW"}}
  })";
  const RunConfig run = read_types(text);
  EXPECT_EQ(run.data.kind, data::DataOptions::Kind::labelled_text);
  EXPECT_EQ(run.model.bert.classes, 3);
  EXPECT_EQ(run.data.classes, 3);
  EXPECT_EQ(run.model.bert.vocab_size, 256) << "no mask token";
  EXPECT_EQ(run.data.mask_fraction, 0);
  EXPECT_EQ(run.data.tokenizer, "bytes");
  EXPECT_EQ(written_again(run), run.resolved);
  EXPECT_THAT(refusal_of(text, {"parallel.context=2"}), HasSubstr("this head needs all tokens of a sample"));
  EXPECT_THAT(refusal_of(text, {"parallel.tensor=2", "parallel.sequence_parallel=true"}),
              HasSubstr("this head needs all tokens of a sample"));
  EXPECT_EQ(refusal_of(text, {"parallel.tensor=2"}), "");
  EXPECT_THAT(refusal_of(text, {"data.type=text"}), HasSubstr("it learns from texts with labels"));
}

} // namespace
} // namespace trireme::config
