// Observers of the keys of "model".
#include "run_observers.h"

#include "small_training.h"

#include <trireme/config/adapter_config.h>
#include <trireme/generate/export_model.h>
#include <trireme/models/adapter_files.h>
#include <trireme/models/bert_layers.h>
#include <trireme/models/gpt2_weights.h>
#include <trireme/models/huggingface_families.h>

#include <nlohmann/json.hpp>

namespace trireme::tools::observe {

using test::KeyObserver;

json whether_it_is_read(comm::World&, const json& run) {
  try {
    read(run);
  } catch (const InputError&) {
    return "refused";
  }
  return "read";
}

// JSON lines whose label is whether the text has an "a".
std::string labelled_file(const std::string& name, int stride) {
  std::string lines;
  for (int i = 0; i < 24; ++i) {
    const bool has_a = i * stride % 5 < 2;
    lines += json{{"text", concat(has_a ? "ab abab " : "b bb ", i)}, {"label", has_a ? 1 : 0}}.dump() + "\n";
  }
  return file(name, lines);
}

json classifier() {
  return {{"model", {{"type", "bert"}, {"head", "classes"}}},
          {"data", {{"type", "labelled_text"}, {"train", labelled_file("labelled.jsonl", 1)}}}};
}

namespace {

// Weights of another seed, with GPT-2's names.
json training_with_weights(comm::World& world, const json& run) {
  const fs::path weights = folder() / "gpt.safetensors";
  if (!fs::exists(weights)) {
    models::GptOptions options = read(run).model.gpt;
    options.init_from.clear();
    options.seed = 99;
    models::save_gpt2(models::Gpt(options), weights);
  }
  return training(world, run);
}

// Weights that a training of the same model left, of another seed: a checkpoint.
json trained_before(comm::World& world, const json& run) {
  const fs::path weights = folder() / run["model"]["type"].get<std::string>();
  if (!fs::exists(weights)) {
    json other = run;
    other["model"].erase("init_from");
    other["training"]["seed"] = 99;
    run_training(world, other);
    fs::copy(out() / "checkpoints/global_step2", weights, fs::copy_options::recursive);
  }
  return training(world, run);
}

// The same as a Hugging Face folder.
json training_from_folder(comm::World& world, const json& run) {
  const fs::path weights = folder() / concat(run["model"]["type"].get<std::string>(), "-folder");
  if (!fs::exists(weights)) {
    json other = run;
    other["model"].erase("from");
    other["training"]["seed"] = 99;
    run_training(world, other);
    generate::export_model(out() / "checkpoints", weights);
  }
  return training(world, run);
}

// Adapters of another seed, whose second matrix is not zero, as a folder of PEFT.
json training_with_adapter(comm::World& world, const json& run) {
  const fs::path adapter = folder() / concat(run["model"]["type"].get<std::string>(), "-adapter");
  if (!fs::exists(adapter)) {
    json other = run;
    other["model"].erase("adapter");
    other["training"]["lora"] = {{"rank", 2}};
    const config::ModelConfig model = read(other).model;
    std::vector<models::AdapterTensor> tensors;
    for (const models::LayerShape& layer : model.layer_shapes()) {
      for (const auto& parameter : layer.parameters) {
        if (const std::string name = concat(layer.name, '.', parameter.name); model.lora().trains(name)) {
          tensors.push_back({name, at::full(parameter.sizes, 0.1)});
        }
      }
    }
    fs::create_directories(adapter);
    models::save_adapter(tensors, adapter);
    write_file_atomically(adapter / config::kAdapterConfig, config::write_adapter_config(model, "").dump());
  }
  return training(world, run);
}

// A BERT of another seed as a Hugging Face folder.
json training_from_bert_folder(comm::World& world, const json& run) {
  const fs::path weights = folder() / "bert-folder";
  if (!fs::exists(weights)) {
    json other = run;
    other["model"].erase("from");
    models::BertOptions options = read(other).model.bert;
    options.seed = 99;
    pipeline::PipelineModule module(models::bert_layers(options));
    module.build();
    std::vector<models::SavedParameter> parameters;
    for (const auto& item : module.named_parameters()) {
      const at::Tensor value = item.value().detach();
      parameters.push_back({module.saved_name(item.key()), value.sizes().vec(), [value] { return value; }});
    }
    models::save_huggingface(models::bert_family(), parameters, weights);
    write_file_atomically(weights / "config.json", json{{"model_type", "bert"},
                                                        {"num_hidden_layers", options.layers},
                                                        {"hidden_size", options.hidden},
                                                        {"num_attention_heads", options.heads},
                                                        {"intermediate_size", options.width_of_mlp()},
                                                        {"vocab_size", options.vocab_size},
                                                        {"hidden_dropout_prob", 0.0},
                                                        {"attention_probs_dropout_prob", 0.0}}
                                                       .dump());
  }
  return training(world, run);
}

} // namespace

std::vector<KeyObserver> model_keys() {
  const json cnn = {
      {"model",
       {{"type", "cnn"},
        {"layers", nullptr},
        {"hidden", nullptr},
        {"heads", nullptr},
        {"sequence_length", nullptr},
        {"vocab_size", nullptr},
        {"side", 8},
        {"width", 4}}},
      {"data", {{"type", "images"}, {"train", images_file("images", 7)}, {"train_labels", labels_file("labels", 3)}}}};
  const json alexnet = {{"model",
                         {{"type", "alexnet"},
                          {"layers", nullptr},
                          {"hidden", 16},
                          {"heads", nullptr},
                          {"sequence_length", nullptr},
                          {"vocab_size", nullptr},
                          {"channels", 1},
                          {"resize", 64}}},
                        {"data", cnn.at("data")}};
  const json llama = {{"model", {{"type", "llama"}}}};
  const json bert = {{"model", {{"type", "bert"}, {"mask_token", 259}}}};
  const json classes = classifier();
  const auto scaled = [&](const char* type, const char* key, const json& one, const json& other,
                          const json& more = json::object()) {
    json scaling = {{"rope_type", type}, {"factor", 4}, {"original_max_position_embeddings", 4096}};
    scaling.update(more);
    const json base = {{"model", {{"type", "llama"}, {"rope_scaling", scaling}}}};
    return KeyObserver{"model.rope_scaling", "", key, one, other, training, base};
  };
  const auto of_llama = [&](const char* key, const json& one, const json& other, const json& more = json::object()) {
    json base = llama;
    base["model"].update(more);
    return KeyObserver{"model", "llama", key, one, other, training, base};
  };
  return {
      {"model", "gpt", "from", nullptr, (folder() / "gpt-folder").string(), training_from_folder},
      {"model", "llama", "from", nullptr, (folder() / "llama-folder").string(), training_from_folder, llama},
      {"model", "gpt", "adapter", nullptr, (folder() / "gpt-adapter").string(), training_with_adapter},
      {"model", "llama", "adapter", nullptr, (folder() / "llama-adapter").string(), training_with_adapter, llama},
      {"model", "llama", "init_from", nullptr, (folder() / "llama").string(), trained_before, llama},
      of_llama("layers", 1, 2),
      of_llama("hidden", 16, 32),
      of_llama("heads", 2, 4),
      of_llama("kv_heads", 1, 2),
      of_llama("head_dim", 4, 8),
      of_llama("intermediate", 24, 40),
      of_llama("sequence_length", 8, 4),
      of_llama("vocab_size", 260, 300),
      of_llama("rope_theta", 10000, 100),
      of_llama("max_positions", 4, 8, {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}}),
      of_llama("rms_norm_eps", 1e-5, 0.1),
      of_llama("attention_bias", false, true),
      of_llama("attention_output_bias", false, true),
      of_llama("mlp_bias", false, true),
      of_llama("qk_norm", false, true),
      of_llama("window", 0, 2),
      of_llama("first_window_layer", 0, 1, {{"window", 2}}),
      of_llama("tie_embeddings", true, false),
      scaled("yarn", "rope_type", "yarn", "linear"),
      {"model.rope_scaling",
       "",
       "type",
       "yarn",
       "linear",
       training,
       {{"model", {{"type", "llama"}, {"rope_scaling", {{"factor", 4}}}}}}},
      scaled("yarn", "factor", 2, 4),
      scaled("yarn", "original_max_position_embeddings", 64, 4096),
      scaled("llama3", "low_freq_factor", 1, 0.5, {{"original_max_position_embeddings", 64}}),
      scaled("llama3", "high_freq_factor", 4, 8, {{"original_max_position_embeddings", 64}}),
      scaled("yarn", "beta_fast", 32, 4),
      scaled("yarn", "beta_slow", 1, 20),
      scaled("yarn", "attention_factor", nullptr, 2),
      scaled("yarn", "mscale", 1, 2, {{"mscale_all_dim", 0.5}}),
      scaled("yarn", "mscale_all_dim", 1, 2, {{"mscale", 0.5}}),
      scaled("yarn", "truncate", true, false),
      {"model", "gpt", "layers", 1, 2, training},
      {"model", "gpt", "hidden", 16, 32, training},
      {"model", "gpt", "heads", 2, 4, training},
      {"model", "gpt", "sequence_length", 8, 4, training},
      {"model", "gpt", "vocab_size", 260, 300, training},
      {"model", "gpt", "tie_embeddings", true, false, training},
      {"model", "gpt", "dropout", 0, 0.5, training},
      {"model", "gpt", "init_from", nullptr, (folder() / "gpt.safetensors").string(), training_with_weights},
      {"model", "bert", "from", nullptr, (folder() / "bert-folder").string(), training_from_bert_folder, bert},
      {"model", "bert", "init_from", nullptr, (folder() / "bert").string(), trained_before, bert},
      {"model", "bert", "adapter", nullptr, (folder() / "bert-adapter").string(), training_with_adapter, bert},
      {"model", "bert", "layers", 1, 2, training, bert},
      {"model", "bert", "hidden", 16, 32, training, bert},
      {"model", "bert", "heads", 2, 4, training, bert},
      {"model", "bert", "intermediate", 24, 40, training, bert},
      {"model", "bert", "sequence_length", 8, 4, training, bert},
      {"model", "bert", "vocab_size", 260, 300, training, bert},
      {"model", "bert", "segments", 2, 3, training, bert},
      {"model", "bert", "dropout", 0, 0.5, training, bert},
      {"model", "bert", "layer_norm_eps", 1e-12, 0.1, training, bert},
      {"model", "bert", "head", "masked_lm", "classes", whether_it_is_read, bert},
      {"model", "bert", "classes", 2, 3, training, classes},
      {"model", "bert", "mask_fraction", 0.15, 0.5, training, bert},
      {"model", "bert", "mask_token", 259, 258, training, bert},
      {"model", "alexnet", "channels", 1, 3, model, alexnet},
      {"model", "alexnet", "classes", 10, 12, training, alexnet},
      {"model", "alexnet", "resize", 64, 70, training, alexnet},
      {"model", "alexnet", "hidden", 16, 24, training, alexnet},
      {"model", "alexnet", "dropout", 0, 0.5, training, alexnet},
      {"model", "alexnet", "init_from", nullptr, (folder() / "alexnet").string(), trained_before, alexnet},
      {"model", "cnn", "channels", 1, 3, model, cnn},
      {"model", "cnn", "side", 8, 12, model, cnn},
      {"model", "cnn", "classes", 10, 12, training, cnn},
      {"model", "cnn", "width", 4, 8, training, cnn},
      {"model", "cnn", "dropout", 0, 0.5, training, cnn},
      {"model", "cnn", "init_from", nullptr, (folder() / "cnn").string(), trained_before, cnn},
  };
}

} // namespace trireme::tools::observe
