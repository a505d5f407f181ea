// Llama equals Hugging Face's transformers: logits and 20 steps of training, from the folders that transformers writes,
// and transformers opens what is written here. As layers of a pipeline it is the same.
#include <tests/support/command.h>
#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/checkpoint/safetensors.h>
#include <trireme/models/huggingface_families.h>
#include <trireme/models/llama.h>
#include <trireme/models/llama_layers.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>

namespace trireme::models {
namespace {

namespace fs = std::filesystem;
using test::run_command;
using testing::AllOf;
using testing::HasSubstr;

LlamaOptions small_llama(bool tied = true) {
  LlamaOptions options;
  options.layers = 2;
  options.hidden = 16;
  options.heads = 4;
  options.kv_heads = 2;
  options.intermediate = 24;
  options.sequence_length = 12;
  options.vocab_size = 50;
  options.tie_embeddings = tied;
  return options;
}

/// All that a Llama may have.
LlamaOptions full_llama() {
  LlamaOptions options = small_llama(false);
  options.head_dim = 6;
  options.attention_bias = options.attention_output_bias = options.mlp_bias = options.qk_norm = true;
  options.window = 5;
  options.first_window_layer = 1;
  return options;
}

std::vector<SavedParameter> saved(const Llama& model) {
  std::vector<SavedParameter> parameters;
  for (const auto& item : model->named_parameters()) {
    parameters.push_back({item.key(), item.value().sizes().vec(), [value = item.value()] { return value; }});
  }
  return parameters;
}

RopeScaling scaling_of(const nlohmann::json& json) {
  const std::map<std::string, RopeScaling::Kind> kinds = {{"default", RopeScaling::Kind::none},
                                                          {"linear", RopeScaling::Kind::linear},
                                                          {"dynamic", RopeScaling::Kind::dynamic},
                                                          {"llama3", RopeScaling::Kind::llama3},
                                                          {"yarn", RopeScaling::Kind::yarn}};
  RopeScaling scaling;
  scaling.kind = kinds.at(json.at("rope_type"));
  scaling.factor = json.value("factor", scaling.factor);
  scaling.original_positions = json.value("original_max_position_embeddings", scaling.original_positions);
  scaling.low_freq_factor = json.value("low_freq_factor", scaling.low_freq_factor);
  scaling.high_freq_factor = json.value("high_freq_factor", scaling.high_freq_factor);
  scaling.beta_fast = json.value("beta_fast", scaling.beta_fast);
  scaling.beta_slow = json.value("beta_slow", scaling.beta_slow);
  scaling.attention_factor = json.value("attention_factor", scaling.attention_factor);
  scaling.mscale = json.value("mscale", scaling.mscale);
  scaling.mscale_all_dim = json.value("mscale_all_dim", scaling.mscale_all_dim);
  scaling.truncate = json.value("truncate", scaling.truncate);
  return scaling;
}

/// options.json of tests/models/reference_llama.py.
LlamaOptions options_in(const fs::path& folder) {
  const nlohmann::json json = nlohmann::json::parse(read_file(folder / "options.json"));
  LlamaOptions options;
  options.layers = json["layers"];
  options.hidden = json["hidden"];
  options.heads = json["heads"];
  options.kv_heads = json["kv_heads"];
  options.head_dim = json["head_dim"];
  options.intermediate = json["intermediate"];
  options.sequence_length = json["sequence_length"];
  options.vocab_size = json["vocab_size"];
  options.rope_theta = json["rope_theta"];
  options.max_positions = json["max_positions"];
  options.rms_norm_eps = json["rms_norm_eps"];
  options.attention_bias = json["attention_bias"];
  options.attention_output_bias = json["attention_output_bias"];
  options.mlp_bias = json["mlp_bias"];
  options.qk_norm = json["qk_norm"];
  options.window = json["window"];
  options.first_window_layer = json["first_window_layer"];
  options.tie_embeddings = json["tie_embeddings"];
  options.rope_scaling = scaling_of(json["rope_scaling"]);
  options.init_from = folder;
  return options;
}

std::vector<double> trained_losses(Llama& model, const at::Tensor& rows, int64_t steps) {
  constexpr int64_t kBatch = 8;
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(0.1));
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor batch = rows.narrow(0, step * kBatch, kBatch);
    const int64_t length = batch.size(1) - 1;
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(batch.narrow(1, 0, length), batch.narrow(1, 1, length));
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

class LlamaTest : public testing::Test {
 protected:
  LlamaTest() : folder_(fs::path(testing::TempDir()) / concat("trireme_llama_", ::getpid())) {
    fs::create_directories(folder_);
    at::set_num_threads(1); // the models are small
  }
  ~LlamaTest() override { fs::remove_all(folder_); }
  static std::pair<int, std::string> python(const std::string& script, const std::string& arguments) {
    return run_command(
        concat("\"" + test::python() + "\" \"" + test::source_dir() + "/tests/models/", script, "\" ", arguments));
  }
  fs::path folder_;
};

// Python twice for all of them: transformers takes seconds to import.
TEST_F(LlamaTest, LogitsAndTrainingAreThoseOfTransformers) {
  const auto [status, output] = python("reference_llama.py", folder_.string());
  ASSERT_EQ(status, 0) << output << "\n(./test installs transformers)";
  std::string folders;
  int models = 0, sharded = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const fs::path& folder = entry.path();
    SCOPED_TRACE(folder.filename());
    const auto expected = checkpoint::Safetensors::open(folder / "expected.safetensors");
    Llama model(options_in(folder));
    const at::Tensor logits = expected.tensor("logits");
    {
      const torch::NoGradGuard no_grad;
      EXPECT_LT(largest_difference(model->forward(expected.tensor("tokens")), logits),
                1e-5 * std::max(1.0, logits.abs().max().item<double>()));
    }
    // Written in another number of files, for transformers to open below.
    fs::create_directories(folder / "again");
    fs::copy_file(folder / "config.json", folder / "again/config.json");
    save_huggingface(llama_family(), saved(model), folder / "again", {.max_shard_bytes = 30000});
    folders += concat(" \"", folder.string(), '"');
    const at::Tensor losses = expected.tensor("losses");
    const std::vector<double> ours = trained_losses(model, expected.tensor("rows"), losses.size(0));
    for (int64_t step = 0; step < losses.size(0); ++step) {
      const double loss = losses[step].item<double>();
      EXPECT_NEAR(ours[static_cast<size_t>(step)], loss, 1e-4 * loss) << "step " << step;
    }
    ++models;
    sharded += fs::exists(folder / "model.safetensors.index.json") ? 1 : 0;
  }
  EXPECT_GE(models, 12);
  EXPECT_GE(sharded, 4);
  const auto [opened, complaints] = python("open_llama.py", folders);
  EXPECT_EQ(opened, 0) << complaints;
}

TEST_F(LlamaTest, LayersOfAPipelineAreTheModule) {
  for (const LlamaOptions& options : {small_llama(), full_llama()}) {
    Llama model(options);
    const pipeline::LayerList list = llama_layers(options);
    at::Tensor x = (torch::arange(24) * 7 % 50).view({2, 12});
    const at::Tensor expected = model->forward(x);
    const auto parameters = model->named_parameters();
    size_t found = 0;
    std::shared_ptr<torch::nn::Module> tied;
    const torch::NoGradGuard no_grad;
    for (const pipeline::Layer& layer : list) {
      const bool is_head = tied != nullptr && layer.tie();
      const pipeline::BuiltLayer built = is_head ? layer.share(tied) : layer.build();
      tied = layer.tie() ? built.module : tied;
      for (const auto& item : built.module->named_parameters()) {
        const std::string name = concat(layer.name().value(), '.', item.key());
        ASSERT_TRUE(parameters.contains(name)) << name;
        EXPECT_TRUE(parameters[name].equal(item.value())) << name;
        found += is_head ? 0 : 1;
      }
      x = built.forward({x}).at(0);
    }
    EXPECT_EQ(found, parameters.size());
    EXPECT_TRUE(x.equal(expected));
  }
}

TEST_F(LlamaTest, PartsHaveTheNamesAndSizesOfTheModule) {
  for (const LlamaOptions& options : {small_llama(true), small_llama(false), full_llama()}) {
    const auto parameters = Llama(options)->named_parameters();
    std::set<std::string> names;
    for (const LayerShape& part : layer_shapes(options)) {
      for (const auto& [name, sizes, split] : part.parameters) {
        EXPECT_EQ(parameters[concat(part.name, '.', name)].sizes().vec(), sizes) << part.name << ' ' << name;
        names.insert(concat(part.name, '.', name));
      }
    }
    EXPECT_EQ(names.size(), parameters.size());
  }
}

TEST_F(LlamaTest, BeginsAsTransformersDoesAndLearns) {
  LlamaOptions options = full_llama();
  options.hidden = 64;
  const auto parameters = Llama(options)->named_parameters();
  EXPECT_EQ(parameters["model.layers.1.self_attn.q_norm.weight"].min().item<double>(), 1);
  EXPECT_EQ(parameters["model.layers.1.mlp.down_proj.bias"].abs().max().item<double>(), 0);
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight"}) {
    EXPECT_NEAR(parameters[name].std().item<double>(), 0.02, 0.002) << name;
  }
  Llama model(options);
  const at::Tensor rows = (torch::arange(13) + torch::arange(160).unsqueeze(1) * 7) % 50;
  const std::vector<double> losses = trained_losses(model, rows, 20);
  EXPECT_LT(losses.back(), 0.5 * losses.front());
}

// Only the tokens of the window, whatever kernel computes them.
TEST_F(LlamaTest, AWindowHidesOlderTokens) {
  LlamaOptions options = small_llama();
  options.layers = 1;
  options.window = 3;
  const torch::NoGradGuard no_grad;
  Llama model(options);
  at::Tensor tokens = torch::arange(12).view({1, 12});
  const at::Tensor before = model->forward(tokens);
  tokens[0][4] = 40;
  const at::Tensor changed = (model->forward(tokens) - before).abs().amax({0, 2}).gt(0);
  EXPECT_TRUE(changed.equal((torch::arange(12) >= 4).logical_and(torch::arange(12) < 7))) << changed;
}

TEST_F(LlamaTest, SavesInOneFileOrSeveralAndFindsAllAgain) {
  const Llama model(full_llama());
  LlamaOptions from = full_llama();
  from.seed = 99;
  from.init_from = folder_ / "saved";
  for (const int64_t bytes : {int64_t{10000}, int64_t{5'000'000'000}, int64_t{3000}}) {
    save_huggingface(llama_family(), saved(model), from.init_from, {.max_shard_bytes = bytes});
    const bool one = bytes > 1'000'000;
    EXPECT_EQ(fs::exists(from.init_from / "model.safetensors"), one);
    EXPECT_EQ(fs::exists(from.init_from / "model.safetensors.index.json"), !one) << "what another save left is gone";
    const Llama again(from);
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(again->named_parameters()[item.key()].equal(item.value())) << item.key();
    }
  }
  save_huggingface(llama_family(), saved(model), from.init_from, {.dtype = at::kBFloat16});
  const Llama rounded(from);
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(rounded->named_parameters()[item.key()].equal(item.value().to(at::kBFloat16).to(at::kFloat)));
  }
}

TEST_F(LlamaTest, SaysWhichTensorAndWhichKeyDoNotFit) {
  const auto save = [&](const LlamaOptions& options) {
    save_huggingface(llama_family(), saved(Llama(options)), folder_ / "saved");
  };
  const auto complaint = [&](const std::function<void(LlamaOptions&)>& change) -> std::string {
    LlamaOptions options = full_llama();
    options.init_from = folder_ / "saved";
    change(options);
    try {
      Llama model(options);
    } catch (const InputError& error) {
      return error.what();
    }
    return "nothing";
  };
  save(full_llama());
  EXPECT_EQ(complaint([](LlamaOptions&) {}), "nothing");
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.layers = 3; }),
              AllOf(HasSubstr("has no tensor \"model.layers.2.input_layernorm.weight\""),
                    HasSubstr("\"num_hidden_layers\" in config.json (model.layers")));
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.layers = 1; }),
              AllOf(HasSubstr("the model has no tensor \"model.layers.1."), HasSubstr("num_hidden_layers")));
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.intermediate = 25; }),
              AllOf(HasSubstr("gate_proj.weight\" has shape [24, 16], the model needs [25, 16]"),
                    HasSubstr("\"intermediate_size\" in config.json (model.intermediate")));
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.kv_heads = 1; }),
              AllOf(HasSubstr("k_proj.weight\" has shape [12, 16]"), HasSubstr("num_key_value_heads")));
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.vocab_size = 51; }), HasSubstr("\"vocab_size\" in config.json"));
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.qk_norm = false; }),
              AllOf(HasSubstr("the model has no tensor \"model.layers.0.self_attn.k_norm.weight\""),
                    HasSubstr("model.qk_norm")));
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.mlp_bias = false; }),
              AllOf(HasSubstr("mlp.down_proj.bias\""), HasSubstr("mlp_bias")));
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.tie_embeddings = true; }),
              HasSubstr("\"lm_head.weight\" differs from \"model.embed_tokens.weight\""));
  save(small_llama(true));
  const auto of_small = [&](LlamaOptions options) {
    return complaint([options](LlamaOptions& o) mutable {
      options.init_from = o.init_from;
      o = options;
    });
  };
  EXPECT_EQ(of_small(small_llama(true)), "nothing");
  EXPECT_THAT(of_small(small_llama(false)),
              AllOf(HasSubstr("no tensor \"lm_head.weight\""), HasSubstr("model.tie_embeddings to true")));
  LlamaOptions biased = small_llama(true);
  biased.attention_bias = true;
  EXPECT_THAT(of_small(biased), AllOf(HasSubstr("self_attn.q_proj.bias\""), HasSubstr("\"attention_bias\"")));
}

TEST_F(LlamaTest, RefusesSizesThatDoNotFit) {
  const auto complaint = [&](const std::function<void(LlamaOptions&)>& change) -> std::string {
    LlamaOptions options = small_llama();
    change(options);
    try {
      Llama model(options);
    } catch (const InputError& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.heads = 3; }), HasSubstr("heads must divide hidden, got 3 and 16"));
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.kv_heads = 3; }), HasSubstr("kv_heads must divide heads, got 3 and 4"));
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.head_dim = 7; }), HasSubstr("head_dim is 7"));
  EXPECT_THAT(complaint([](LlamaOptions& o) { o.window = -1; }), HasSubstr("a window of -1 tokens"));
}

} // namespace
} // namespace trireme::models
