#include <trireme/config/adapter_config.h>

#include <trireme/base/error.h>
#include <trireme/base/json.h>
#include <trireme/base/path.h>
#include <trireme/base/text.h>
#include <trireme/config/lora.h>
#include <trireme/config/run_file.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>

namespace trireme::config {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kMostRank = 65536;

const JsonNode* find_value(const JsonNode& root, std::string_view key) {
  const JsonNode* found = root.find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

JsonNode parse_config(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_regular_file(folder / kAdapterConfig, ignored)) {
    throw InputError("lora", concat("there is no ", (folder / kAdapterConfig).string(), ", which a PEFT folder has"),
                     concat("Name the folder that holds ", kAdapterConfig, " and adapter_model.safetensors."));
  }
  JsonNode root = JsonNode::parse_file(folder / kAdapterConfig);
  root.members(); // fails if it is not an object
  return root;
}

// Whether a value asks for nothing.
bool is_off(const json& value) {
  return value.is_null() || value == false || value == "none" || (value.is_structured() && value.empty());
}

void refuse_other_methods(const JsonNode& root) {
  constexpr std::array kUnknown = {"bias",
                                   "use_dora",
                                   "rank_pattern",
                                   "alpha_pattern",
                                   "layer_replication",
                                   "lora_bias",
                                   "target_parameters",
                                   "trainable_token_indices",
                                   "use_qalora",
                                   "alora_invocation_tokens",
                                   "use_bdlora"};
  for (const char* key : kUnknown) {
    if (const JsonNode* found = root.find(key); found != nullptr && !is_off(json(found->plain()))) {
      found->fail("adapters here have matrices A and B of one rank and nothing else", "Train the adapter without it.");
    }
  }
  if (const JsonNode* type = find_value(root, "peft_type"); type == nullptr || type->as_string() != "LORA") {
    (type == nullptr ? root : *type).fail("only adapters of peft_type \"LORA\" can be read");
  }
  const JsonNode* start = find_value(root, "init_lora_weights");
  if (start != nullptr && start->kind() == JsonNode::Kind::string && start->as_string() != "gaussian" &&
      start->as_string() != "eva" && start->as_string() != "orthogonal") {
    start->fail(concat('"', start->as_string(), "\" changes the base model's weights too"),
                "Convert it to a plain LoRA with PEFT.");
  }
}

// PEFT's for the head of any classifier are "classifier" and "score".
void check_whole_layers(const JsonNode& root, const std::set<std::string>& ours) {
  const JsonNode* modules = root.find("modules_to_save");
  if (modules == nullptr || is_off(json(modules->plain()))) {
    return;
  }
  for (const JsonNode& name : modules->elements()) {
    if (ours.empty() || !(ours.contains(name.as_string()) || name.as_string() == "score")) {
      name.fail(concat('"', printable(name.as_string()),
                       "\" in full cannot be had beside adapters: only a bert's new \"classifier\" can"),
                "Train the adapter without it.");
    }
  }
}

// Linear layers that PEFT sees in the models of these weights, whatever their head: an ending must not name them.
std::vector<std::string> linear_names_for_peft(const ModelConfig& model) {
  std::vector<std::string> names = models::linear_names(model.layer_shapes());
  for (const char* const beside : {"bert.pooler.dense", "cls.predictions.transform.dense", "cls.predictions.decoder",
                                   "cls.seq_relationship", "classifier", "lm_head", "score"}) {
    names.emplace_back(beside);
  }
  return names;
}

// The names that a key of PEFT means: an expression for full names, or a list of their last parts.
std::set<std::string> names_meant(const JsonNode& key, const std::vector<std::string>& names) {
  std::set<std::string> meant;
  if (key.kind() == JsonNode::Kind::string) {
    constexpr size_t kLongest = 1000; // std::regex calls itself for every bracket
    if (key.as_string().size() > kLongest) {
      key.fail(concat("the expression has more than ", kLongest, " characters"));
    }
    const Expression expression{concat("^(?:", key.as_string(), ")$"), concat(key.where(), ": ", key.path())};
    const std::vector<bool> matches = matches_of(expression, names);
    for (size_t i = 0; i < names.size(); ++i) {
      if (matches[i]) {
        meant.insert(names[i]);
      }
    }
    return meant;
  }
  for (const JsonNode& part : key.elements()) {
    const std::string ending = concat('.', part.as_string());
    std::copy_if(names.begin(), names.end(), std::inserter(meant, meant.end()),
                 [&](const std::string& name) { return name == part.as_string() || name.ends_with(ending); });
  }
  return meant;
}

std::set<int64_t> numbers_in(const JsonNode& key) {
  std::set<int64_t> numbers;
  if (key.kind() == JsonNode::Kind::array) {
    for (const JsonNode& number : key.elements()) {
      numbers.insert(number.as_integer());
    }
  } else {
    numbers.insert(key.as_integer());
  }
  return numbers;
}

// 2 for "model.layers.2.self_attn.q_proj": the last part of a name that is a number. Blocks of all models have one.
std::optional<int64_t> block_of(const std::string& name) {
  const std::vector<std::string> parts = split(name, '.');
  const auto found = std::find_if(parts.rbegin(), parts.rend(), [](const std::string& part) {
    return !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
  });
  return found == parts.rend() ? std::nullopt : std::optional<int64_t>(std::stoll(*found));
}

// "layers" of "model.layers.2.self_attn.q_proj": what names have before the number of their block.
std::string list_of_blocks(const std::string& name) {
  const std::vector<std::string> parts = split(name, '.');
  const auto found = std::adjacent_find(parts.begin(), parts.end(), [](const std::string&, const std::string& next) {
    return !next.empty() && next.find_first_not_of("0123456789") == std::string::npos;
  });
  return found == parts.end() ? "" : *found;
}

// PEFT looks for the numbers of layers_to_transform behind these names; a model here has one such list.
void check_layers_pattern(const JsonNode& root, const std::vector<std::string>& names) {
  const JsonNode* const pattern = root.find("layers_pattern");
  if (pattern == nullptr || is_off(json(pattern->plain())) || names.empty()) {
    return;
  }
  const std::string blocks = list_of_blocks(names.front());
  const auto check = [&](const JsonNode& name) {
    if (name.as_string() != blocks && !name.as_string().empty()) {
      name.fail(concat("this model's blocks are \"", blocks, "\", not \"", printable(name.as_string()), '"'),
                concat("Leave it out, or write \"", blocks, "\"."));
    }
  };
  if (pattern->kind() == JsonNode::Kind::array) {
    for (const JsonNode& name : pattern->elements()) {
      check(name);
    }
  } else {
    check(*pattern);
  }
}

// PEFT's target_modules without its exclude_modules, in the blocks of its layers_to_transform.
std::set<std::string> layers_of(const JsonNode& root, const JsonNode& targets, const std::vector<std::string>& names) {
  const bool all = targets.kind() == JsonNode::Kind::string && targets.as_string() == "all-linear";
  std::set<std::string> layers = all ? std::set(names.begin(), names.end()) : names_meant(targets, names);
  if (const JsonNode* excluded = find_value(root, "exclude_modules")) {
    for (const std::string& name : names_meant(*excluded, names)) {
      layers.erase(name);
    }
  }
  check_layers_pattern(root, names);
  if (const JsonNode* only = find_value(root, "layers_to_transform"); only != nullptr && !is_off(json(only->plain()))) {
    const std::set<int64_t> blocks = numbers_in(*only);
    std::erase_if(layers, [&](const std::string& name) {
      const std::optional<int64_t> block = block_of(name);
      return !block || !blocks.contains(*block);
    });
  }
  if (layers.empty()) {
    targets.fail("the model has no such linear layer in its blocks",
                 "The adapter belongs to another base model; embeddings and heads have no adapters.");
  }
  return layers;
}

} // namespace

models::LoraOptions read_adapter_config(const fs::path& folder, const std::vector<models::LayerShape>& shapes) {
  const JsonNode root = parse_config(folder);
  refuse_other_methods(root);
  const auto require = [&](const char* key) -> const JsonNode& {
    const JsonNode* found = find_value(root, key);
    if (found == nullptr) {
      root.fail(concat('"', key, "\" is missing"), "PEFT writes it.");
    }
    return *found;
  };
  models::LoraOptions lora;
  lora.init_from = folder;
  lora.rank = require("r").as_integer();
  lora.alpha = require("lora_alpha").as_real();
  if (lora.rank < 1 || lora.rank > kMostRank) {
    require("r").fail(concat("the rank must be from 1 to ", kMostRank, ", found ", lora.rank));
  }
  if (!(lora.alpha > 0)) {
    require("lora_alpha").fail(concat("must be above 0, found ", lora.alpha));
  }
  if (const JsonNode* stable = find_value(root, "use_rslora"); stable != nullptr && stable->as_bool()) {
    lora.alpha *= std::sqrt(static_cast<double>(lora.rank)); // then PEFT divides by the rank's root
  }
  if (const JsonNode* dropout = find_value(root, "lora_dropout")) {
    lora.dropout = dropout->as_real();
    if (!(lora.dropout >= 0 && lora.dropout < 1)) {
      dropout->fail(concat("must be from 0 to below 1, found ", lora.dropout));
    }
  }
  lora.layers = layers_of(root, require("target_modules"), models::linear_names(shapes));
  lora.whole_layers = models::layers_beside_adapters(shapes);
  check_whole_layers(root, lora.whole_layers);
  return lora;
}

std::string base_of_adapter(const fs::path& folder) {
  const JsonNode root = parse_config(folder);
  const JsonNode* base = find_value(root, "base_model_name_or_path");
  return base == nullptr ? "" : base->as_string();
}

std::string other_base_of_adapter(const fs::path& folder, const fs::path& model) {
  const std::string base = base_of_adapter(folder);
  const bool is_same = without_end_slash(base).filename() == without_end_slash(model).filename();
  return is_same ? "" : base;
}

nlohmann::ordered_json write_adapter_config(const ModelConfig& model, const std::string& base) {
  const models::LoraOptions& lora = model.lora();
  const bool is_whole = lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e15;
  nlohmann::ordered_json out = {
      {"peft_type", "LORA"},
      {"task_type", nullptr}, // PEFT has none for masked tokens
      {"base_model_name_or_path", base},
      {"inference_mode", true},
      {"r", lora.rank},
      {"lora_alpha",
       is_whole ? nlohmann::ordered_json(static_cast<int64_t>(lora.alpha)) : nlohmann::ordered_json(lora.alpha)},
      {"lora_dropout", lora.dropout},
      {"target_modules", target_endings(lora.layers, linear_names_for_peft(model))},
      {"bias", "none"},
      {"fan_in_fan_out", model.kind == ModelConfig::Kind::gpt}}; // its files have matrices as [in, out]
  if (model.is_language()) {
    out["task_type"] = "CAUSAL_LM";
  } else if (!lora.whole_layers.empty()) {
    out["task_type"] = "SEQ_CLS";
    out["modules_to_save"] = lora.whole_layers;
  }
  return out;
}

} // namespace trireme::config
