// config.json of Hugging Face folders: what becomes of its keys, what is refused, and that a model written as
// config.json is read as the same model. tests/models/llama_test.cpp compares with transformers.
#include <trireme/base/error.h>
#include <trireme/config/huggingface_model.h>
#include <trireme/config/run_file.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace trireme::config {
namespace {

namespace fs = std::filesystem;
using models::RopeScaling;
using nlohmann::ordered_json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ordered_json llama_config() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"num_hidden_layers", 30},
          {"hidden_size", 576},
          {"num_attention_heads", 9},
          {"num_key_value_heads", 3},
          {"intermediate_size", 1536},
          {"vocab_size", 49152},
          {"max_position_embeddings", 8192},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 100000},
          {"rope_scaling", nullptr},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"}};
}

ordered_json qwen2_config() {
  ordered_json out = llama_config();
  out["model_type"] = "qwen2";
  return out;
}

class HuggingFaceModelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "trireme_hf_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = fs::canonical(name);
    write("train.txt", "some text");
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  HuggingFaceModel read(const ordered_json& config) {
    write("config.json", config.dump(2));
    return read_huggingface_model(folder_);
  }
  std::string error_of(const ordered_json& config) {
    try {
      read(config);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
  // A run file whose model comes from the folder.
  RunConfig run(const std::string& more, const std::vector<std::string>& overrides = {},
                Files files = Files::must_exist) {
    write("run.json", R"({"model": {"from": ".")" + more + R"(}, "data": {"type": "text", "train": "train.txt"},
      "training": {"steps": 1}, "engine": {"train_batch_size": 1}})");
    return read_run_file(folder_ / "run.json", overrides, files);
  }

  fs::path folder_;
};

TEST_F(HuggingFaceModelTest, SmolLm2) {
  const HuggingFaceModel model = read(llama_config());
  const models::LlamaOptions& llama = model.llama;
  EXPECT_EQ(model.family, models::TransformerShape::Family::llama);
  EXPECT_EQ(llama.layers, 30);
  EXPECT_EQ(llama.kv_heads, 3);
  EXPECT_EQ(llama.width_of_head(), 64);
  EXPECT_EQ(llama.intermediate, 1536);
  EXPECT_EQ(llama.rope_theta, 100000);
  EXPECT_EQ(llama.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_EQ(llama.max_positions, 8192);
  EXPECT_EQ(llama.sequence_length, kDefaultSequence);
  EXPECT_TRUE(llama.tie_embeddings);
  EXPECT_FALSE(llama.attention_bias);
  EXPECT_EQ(llama.init_from, folder_);
  EXPECT_THAT(model.notes, IsEmpty());
}

TEST_F(HuggingFaceModelTest, FamiliesDifferInBiasesNormsAndWindows) {
  ordered_json config = qwen2_config();
  config.update({{"use_sliding_window", true}, {"sliding_window", 32}, {"max_window_layers", 12}});
  models::LlamaOptions llama = read(config).llama;
  EXPECT_TRUE(llama.attention_bias && !llama.attention_output_bias && !llama.qk_norm);
  EXPECT_EQ(llama.window, 32);
  EXPECT_EQ(llama.first_window_layer, 12);

  config["max_window_layers"] = 0;
  EXPECT_EQ(read(config).llama.first_window_layer, 0) << "every layer";
  config["use_sliding_window"] = false;
  EXPECT_EQ(read(config).llama.window, 0) << "not used";

  config = llama_config();
  config.update({{"model_type", "mistral"}, {"sliding_window", 4096}});
  EXPECT_EQ(read(config).llama.window, 4096);
  EXPECT_EQ(read(config).llama.first_window_layer, 0);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(read(config).llama.window, 0);

  config = llama_config();
  config.update({{"model_type", "qwen3"}, {"head_dim", 128}});
  llama = read(config).llama;
  EXPECT_TRUE(llama.qk_norm && !llama.attention_bias);
  EXPECT_EQ(llama.width_of_head(), 128) << "not hidden / heads";

  config = llama_config();
  config.update({{"attention_bias", true}, {"mlp_bias", true}});
  llama = read(config).llama;
  EXPECT_TRUE(llama.attention_bias && llama.attention_output_bias && llama.mlp_bias);
}

// As transformers 5.24 has them: MistralConfig().sliding_window is 4096.
TEST_F(HuggingFaceModelTest, MissingKeysHaveTheDefaultsOfTheirClass) {
  ordered_json config = llama_config();
  for (const char* key : {"num_key_value_heads", "max_position_embeddings", "sliding_window"}) {
    config.erase(key);
  }
  config.update({{"num_attention_heads", 32}, {"hidden_size", 64 * 32}, {"head_dim", 64}});
  struct Row {
    const char* type;
    int64_t kv_heads, max_positions, window;
  };
  for (const Row& row :
       {Row{"llama", 32, 2048, 0}, {"mistral", 8, 131072, 4096}, {"qwen2", 32, 32768, 0}, {"qwen3", 32, 32768, 0}}) {
    config["model_type"] = row.type;
    const models::LlamaOptions llama = read(config).llama;
    EXPECT_EQ(llama.kv_heads, row.kv_heads) << row.type;
    EXPECT_EQ(llama.max_positions, row.max_positions) << row.type;
    EXPECT_EQ(llama.window, row.window) << row.type;
  }
  config["use_sliding_window"] = true; // of a qwen3
  config["max_window_layers"] = 1;
  EXPECT_EQ(read(config).llama.window, 4096);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(read(config).llama.window, 0);
  config.update({{"num_attention_heads", 16}, {"num_key_value_heads", nullptr}});
  EXPECT_EQ(read(config).llama.kv_heads, 16) << "as in Qwen3Config(num_key_value_heads=None)";
}

TEST_F(HuggingFaceModelTest, TextNeedsTheTokenizerOfTheWeights) {
  write("config.json", llama_config().dump());
  EXPECT_THAT([&] { run(""); },
              testing::ThrowsMessage<InputError>(AllOf(HasSubstr("\"tokenizer\" is missing"), HasSubstr("has none"))));
  EXPECT_EQ(run("", {"data.tokenizer=bytes"}).data.tokenizer, "bytes");
  write("vocab.json", "{}");
  write("merges.txt", "");
  EXPECT_EQ(run("").data.tokenizer, (folder_ / "vocab.json").string());
  write("m2.txt", "");
  EXPECT_EQ(run("", {"data.tokenizer=vocab.json,m2.txt"}).data.tokenizer,
            concat((folder_ / "vocab.json").string(), ',', (folder_ / "m2.txt").string()));
}

TEST_F(HuggingFaceModelTest, FromNamesAFolderOfThisMachine) {
  write("config.json", llama_config().dump());
  const auto refused = [&](const std::string& from) { return testing::ThrowsMessage<InputError>(HasSubstr(from)); };
  EXPECT_THAT([&] { run("", {"model.from=config.json"}); }, refused("config.json is a file. Name its folder, "));
  for (const Files files : {Files::must_exist, Files::may_be_absent}) { // train and estimate
    EXPECT_THAT([&] { run("", {"model.from=HuggingFaceTB/SmolLM2-135M"}, files); },
                refused("Trireme downloads nothing"));
  }
  fs::remove(folder_ / "config.json");
  ASSERT_EQ(::mkfifo((folder_ / "config.json").c_str(), 0600), 0);
  EXPECT_THAT([&] { run(""); }, refused("config.json is not a regular file"));
}

TEST_F(HuggingFaceModelTest, LayerTypesDecideWhichLayersHaveAWindow) {
  ordered_json config = qwen2_config();
  config.update({{"num_hidden_layers", 3},
                 {"sliding_window", 8},
                 {"layer_types", {"full_attention", "sliding_attention", "sliding_attention"}}});
  EXPECT_EQ(read(config).llama.first_window_layer, 1);
  EXPECT_EQ(read(config).llama.window, 8);
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(error_of(config), HasSubstr("layer_types[1]: a layer with full attention after one with a window"));
  config["layer_types"] = {"chunked_attention", "full_attention", "full_attention"};
  EXPECT_THAT(error_of(config), HasSubstr("layer_types[0]: \"chunked_attention\" is not supported"));
}

TEST_F(HuggingFaceModelTest, RopeScalingInOldAndNewForm) {
  ordered_json config = llama_config();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(read(config).llama.rope_scaling.kind, RopeScaling::Kind::linear);

  config.erase("rope_theta");
  config["rope_scaling"] = nullptr;
  config["rope_parameters"] = {{"rope_type", "llama3"},   {"rope_theta", 500000.0},
                               {"factor", 8.0},           {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  const models::LlamaOptions llama = read(config).llama;
  EXPECT_EQ(llama.rope_theta, 500000);
  EXPECT_EQ(llama.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(llama.rope_scaling.factor, 8);
  EXPECT_EQ(llama.rope_scaling.original_positions, 8192);
}

// Which one counts depends on the version of transformers.
TEST_F(HuggingFaceModelTest, RopeScalingTwiceMustAgree) {
  ordered_json config = llama_config();
  config["rope_theta"] = 500.0;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  config["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 500.0}};
  EXPECT_EQ(read(config).llama.rope_scaling.factor, 2);
  config["rope_parameters"]["factor"] = 4.0;
  EXPECT_THAT(error_of(config), AllOf(HasSubstr("rope_parameters: gives other rotary positions than"),
                                      HasSubstr("rope_scaling"), HasSubstr("Make them equal")));
  config["rope_parameters"]["factor"] = 2.0;
  config["rope_parameters"]["rope_theta"] = 600.0;
  EXPECT_THAT(error_of(config), HasSubstr("rope_theta: gives other rotary positions than"));
  config["rope_parameters"] = nullptr;
  config["rope_scaling"]["mrope_section"] = {1, 2};
  EXPECT_THAT(read(config).notes, testing::Contains(HasSubstr("mrope_section is not known here and was ignored")));
}

TEST_F(HuggingFaceModelTest, WhatIsNotSupportedIsRefusedByItsKey) {
  const auto refused = [&](const char* key, const ordered_json& value) {
    ordered_json config = llama_config();
    config[key] = value;
    return error_of(config);
  };
  EXPECT_THAT(refused("model_type", "mamba"),
              AllOf(HasSubstr("config.json:2:17: model_type: the architecture \"mamba\""),
                    HasSubstr("llama, mistral, qwen2, qwen3 and bert")));
  EXPECT_THAT(refused("hidden_act", "gelu"), HasSubstr("hidden_act: \"gelu\" is not supported: the MLP is SwiGLU"));
  EXPECT_THAT(refused("attention_dropout", 0.1), HasSubstr("attention_dropout: 0.1 is not supported"));
  EXPECT_THAT(refused("partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor: 0.5 is not supported"));
  EXPECT_THAT(refused("quantization_config", {{"bits", 4}}), HasSubstr("quantization_config: quantized weights"));
  EXPECT_THAT(refused("rope_scaling", {{"rope_type", "longrope"}, {"factor", 2}}),
              HasSubstr("the rope type \"longrope\" is not supported"));
  EXPECT_THAT(refused("rope_scaling", {{"rope_type", "yarn"}}), HasSubstr("\"factor\" is missing"));
  EXPECT_THAT(refused("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}),
              HasSubstr("0.5 is not supported"));
  EXPECT_THAT(refused("rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}), HasSubstr("must be at least 1"));
  EXPECT_THAT(refused("num_hidden_layers", -1), HasSubstr("num_hidden_layers: must be at least 1, found -1"));
  EXPECT_THAT(refused("vocab_size", "many"), HasSubstr("vocab_size"));
  ordered_json config = llama_config();
  config.erase("intermediate_size");
  EXPECT_THAT(error_of(config), HasSubstr("\"intermediate_size\" is missing"));
  fs::remove(folder_ / "config.json");
  EXPECT_THROW(read_huggingface_model(folder_), InputError);
}

TEST_F(HuggingFaceModelTest, AnUnknownKeyIsNoted) {
  ordered_json config = llama_config();
  config["residual_multiplier"] = 2;
  EXPECT_THAT(read(config).notes, ElementsAre(HasSubstr("residual_multiplier is not known here and was ignored")));
}

TEST_F(HuggingFaceModelTest, ARunFileTakesItsModelFromAFolder) {
  read(llama_config());
  write("tokenizer.json", "{}");
  const RunConfig got = run(R"(, "sequence_length": 64, "layers": 2)");
  EXPECT_EQ(got.model.kind, ModelConfig::Kind::llama);
  EXPECT_EQ(got.model.llama.layers, 2) << "other keys override";
  EXPECT_EQ(got.model.llama.kv_heads, 3);
  EXPECT_EQ(got.data.sequence_length, 64);
  EXPECT_EQ(got.data.tokenizer, (folder_ / "tokenizer.json").string());
  EXPECT_EQ(got.model.llama.init_from, folder_);

  fs::remove(folder_ / "config.json"); // the resolved file needs it no more
  const RunConfig again = read_run(JsonNode::parse(got.resolved.dump(), "manifest.json"), folder_);
  EXPECT_EQ(again.resolved, got.resolved);
  EXPECT_EQ(again.model.llama.rope_theta, 100000);
}

TEST_F(HuggingFaceModelTest, ABertAndWhatItCannotDo) {
  const ordered_json bert = {{"model_type", "bert"},
                             {"architectures", {"BertForMaskedLM"}},
                             {"num_hidden_layers", 6},
                             {"hidden_size", 384},
                             {"num_attention_heads", 12},
                             {"intermediate_size", 1536},
                             {"vocab_size", 30522},
                             {"max_position_embeddings", 512},
                             {"type_vocab_size", 2},
                             {"layer_norm_eps", 1e-12},
                             {"hidden_dropout_prob", 0.2},
                             {"attention_probs_dropout_prob", 0.2},
                             {"hidden_act", "gelu"},
                             {"id2label", {{"0", "a"}, {"1", "b"}, {"2", "c"}}},
                             {"position_embedding_type", "absolute"}};
  const HuggingFaceModel model = read(bert);
  EXPECT_EQ(model.family, models::TransformerShape::Family::bert);
  EXPECT_EQ(model.bert.layers, 6);
  EXPECT_EQ(model.bert.sequence_length, 512);
  EXPECT_EQ(model.bert.dropout, 0.2);
  EXPECT_EQ(model.bert.head, models::BertOptions::Head::masked_lm);
  EXPECT_EQ(model.bert.init_from, folder_);
  EXPECT_THAT(model.notes, IsEmpty());
  write("tokenizer.json", "{}");
  const RunConfig got = run(R"(, "layers": 2)");
  EXPECT_EQ(got.model.kind, ModelConfig::Kind::bert);
  EXPECT_EQ(got.model.bert.layers, 2);
  EXPECT_EQ(got.model.bert.hidden, 384);
  EXPECT_EQ(got.data.tokenizer, (folder_ / "tokenizer.json").string());

  const auto with = [&](const char* key, const ordered_json& value) {
    ordered_json other = bert;
    other[key] = value;
    return other;
  };
  const HuggingFaceModel classifier = read(with("architectures", {"BertForSequenceClassification"}));
  EXPECT_EQ(classifier.bert.head, models::BertOptions::Head::classes);
  EXPECT_EQ(classifier.bert.classes, 3);
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, ordered_json>>{{"hidden_act", "relu"},
                                                         {"position_embedding_type", "relative_key"},
                                                         {"is_decoder", true},
                                                         {"add_cross_attention", true},
                                                         {"tie_word_embeddings", false},
                                                         {"attention_probs_dropout_prob", 0.1},
                                                         {"classifier_dropout", 0.5},
                                                         {"problem_type", "regression"}}) {
    EXPECT_THAT(error_of(with(key, value)), AllOf(HasSubstr("config.json:"), HasSubstr(key))) << key;
  }
}

TEST_F(HuggingFaceModelTest, ARunFileThatSaysAnotherTypeIsRefused) {
  read(llama_config());
  try {
    run(R"(, "type": "gpt")");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("run.json:1:"), HasSubstr("model.type"), HasSubstr("a llama")));
  }
}

// Heads, norms, biases and windows of each architecture, and both forms of rope.
TEST_F(HuggingFaceModelTest, WrittenAndReadAgainItIsTheSameModel) {
  std::vector<models::LlamaOptions> cases(6);
  cases[1].attention_bias = cases[1].attention_output_bias = cases[1].mlp_bias = true;
  cases[2].window = 16;
  cases[3].attention_bias = true;
  cases[3].window = 16;
  cases[3].first_window_layer = 2;
  cases[4].qk_norm = true;
  cases[4].head_dim = 48;
  cases[4].tie_embeddings = false;
  cases[5].rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_positions = 32, .beta_fast = 16};
  cases[5].kv_heads = 2;
  for (models::LlamaOptions llama : cases) {
    llama.max_positions = 512;
    const ordered_json written = write_huggingface_model(llama, ordered_json{{"eos_token_id", 7}, {"rope_theta", 3}});
    EXPECT_EQ(written["eos_token_id"], 7) << "the folder's own keys stay";
    models::LlamaOptions got = read(written).llama;
    EXPECT_THAT(read(written).notes, IsEmpty());
    got.init_from.clear();
    got.sequence_length = llama.sequence_length;
    EXPECT_EQ(models::layer_shapes(got).size(), models::layer_shapes(llama).size());
    EXPECT_EQ(got.width_of_head(), llama.width_of_head());
    EXPECT_EQ(got.kv_heads_or_all(), llama.kv_heads_or_all());
    EXPECT_EQ(got.width_of_mlp(), llama.width_of_mlp());
    EXPECT_EQ(
        std::tie(got.rope_theta, got.max_positions, got.rms_norm_eps, got.attention_bias, got.attention_output_bias,
                 got.mlp_bias, got.qk_norm, got.window, got.first_window_layer, got.tie_embeddings),
        std::tie(llama.rope_theta, llama.max_positions, llama.rms_norm_eps, llama.attention_bias,
                 llama.attention_output_bias, llama.mlp_bias, llama.qk_norm, llama.window, llama.first_window_layer,
                 llama.tie_embeddings))
        << written;
    EXPECT_EQ(write_rope_scaling(got.rope_scaling), write_rope_scaling(llama.rope_scaling));
  }
  models::LlamaOptions odd;
  odd.qk_norm = odd.mlp_bias = true;
  EXPECT_THROW(write_huggingface_model(odd, ordered_json::object()), InputError);
}

TEST_F(HuggingFaceModelTest, Gpt2) {
  const ordered_json config = {{"model_type", "gpt2"}, {"n_layer", 2},
                               {"n_embd", 48},         {"n_head", 4},
                               {"n_positions", 64},    {"vocab_size", 300},
                               {"resid_pdrop", 0.1},   {"embd_pdrop", 0.1},
                               {"attn_pdrop", 0.1},    {"activation_function", "gelu_new"}};
  const models::GptOptions gpt = read(config).gpt;
  EXPECT_EQ(gpt.sequence_length, 64);
  EXPECT_EQ(gpt.dropout, 0.1);
  const models::GptOptions again = read(write_huggingface_model(gpt, ordered_json::object())).gpt;
  EXPECT_EQ(again.hidden, gpt.hidden);
  EXPECT_EQ(again.dropout, gpt.dropout);
  ordered_json other = config;
  other["attn_pdrop"] = 0.0;
  EXPECT_THAT(error_of(other), HasSubstr("attn_pdrop is 0, resid_pdrop 0.1"));
  other = config;
  other["scale_attn_by_inverse_layer_idx"] = true;
  EXPECT_THAT(error_of(other), HasSubstr("scale_attn_by_inverse_layer_idx: true is not supported"));
}

} // namespace
} // namespace trireme::config
