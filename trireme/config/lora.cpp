#include <trireme/config/lora.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/config/adapter_config.h>
#include <trireme/config/key_check.h>
#include <trireme/config/places.h>
#include <trireme/config/run_file.h>

#include <algorithm>
#include <set>
#include <string>

namespace trireme::config {
namespace {

namespace fs = std::filesystem;

bool ends_with_name(std::string_view name, std::string_view ending) {
  return name == ending || name.ends_with(concat('.', ending));
}

// "self_attn.q_proj" of "model.layers.0.self_attn.q_proj": what names have after the number of their block.
std::set<std::string> names_in_blocks(const std::vector<std::string>& names) {
  std::set<std::string> found;
  for (const std::string& name : names) {
    const size_t digit = name.find_first_of("0123456789");
    const size_t dot = name.find('.', digit == std::string::npos ? 0 : digit);
    found.insert(dot == std::string::npos ? name : name.substr(dot + 1));
  }
  return found;
}

std::vector<Expression> default_targets(const RunConfig& run) {
  const auto ending = [](const char* name) { return Expression{name, "training.lora.targets"}; };
  switch (run.model.kind) {
    case ModelConfig::Kind::llama:
      return {ending("q_proj$"), ending("v_proj$")};
    case ModelConfig::Kind::bert:
      return {ending("query$"), ending("value$")};
    default:
      return {ending("c_attn$")};
  }
}

std::set<std::string> matched_layers(const std::vector<Expression>& targets, const std::vector<std::string>& names) {
  std::set<std::string> layers;
  for (const Expression& target : targets) {
    const std::vector<bool> matches = matches_of(target, names);
    bool any = false;
    for (size_t i = 0; i < names.size(); ++i) {
      if (matches[i]) {
        layers.insert(names[i]);
        any = true;
      }
    }
    if (!any) {
      const std::set<std::string> there = names_in_blocks(names);
      throw InputError(
          "config",
          concat(target.place, ": \"", printable(target.text), "\" matches no linear layer of the model's blocks"),
          concat("They have: ", join(std::vector<std::string>(there.begin(), there.end()), ", "), '.'));
    }
  }
  return layers;
}

std::string escaped(const std::string& name) {
  std::string out;
  for (const char c : name) {
    out += c == '.' ? "\\." : std::string(1, c);
  }
  return out;
}

// What an adapter's own configuration says, as training.lora would.
LoraConfig config_of(const models::LoraOptions& lora, const std::vector<std::string>& names) {
  LoraConfig out{lora.rank, lora.alpha, lora.dropout, {}};
  for (const std::string& ending : target_endings(lora.layers, names)) {
    out.targets.push_back({concat("(^|\\.)", escaped(ending), "$"), "model.adapter"});
  }
  return out;
}

void check_agreement(const JsonNode& root, const models::LoraOptions& wanted, const models::LoraOptions& there) {
  const auto differ = [&](const char* key, const auto& ours, const auto& theirs) {
    if (ours != theirs) {
      const JsonNode& lora = place(root, "training", "lora");
      const JsonNode* const value = lora.find(key);
      (value == nullptr ? lora : *value)
          .fail(concat(key, " is ", ours, ", but that of ", named(place(root, "model", "adapter")), " is ", theirs),
                "Leave training.lora out to take the adapter's.");
    }
  };
  differ("rank", wanted.rank, there.rank);
  differ("alpha", wanted.alpha, there.alpha);
  if (wanted.layers != there.layers) {
    place(root, "training", "lora")
        .fail(concat("it adapts ", wanted.layers.size(), " layers, but ", named(place(root, "model", "adapter")),
                     " has adapters of ", there.layers.size(),
                     there.layers.size() == wanted.layers.size() ? " others" : ""),
              "Leave training.lora out to take the adapter's.");
  }
}

} // namespace

std::optional<LoraConfig> read_lora(const Values& values) {
  if (!values.present()) {
    return std::nullopt;
  }
  LoraConfig out;
  out.rank = values.get("rank", out.rank);
  out.alpha = values.get("alpha", out.alpha);
  out.dropout = values.get("dropout", out.dropout);
  out.targets = values.expressions("targets");
  if (const JsonNode* const targets = values.find("targets");
      targets != nullptr && !targets->is_null() && out.targets.empty()) {
    targets->fail("an empty list adapts no layer", "Name layers, or leave it out for the default.");
  }
  return out;
}

void check_lora(const JsonNode& root, RunConfig& run) {
  std::optional<LoraConfig>& config = run.training.lora;
  if (!run.model.reads_tokens()) {
    if (config) {
      place(root, "training", "lora").fail("only a gpt, llama or bert can have adapters", "Leave it out.");
    }
    return;
  }
  models::LoraOptions& lora = run.model.lora();
  if (!config && lora.init_from.empty()) {
    return;
  }
  const std::vector<models::LayerShape> shapes = run.model.layer_shapes();
  const std::vector<std::string> names = models::linear_names(shapes);
  std::optional<models::LoraOptions> saved;
  std::error_code ignored;
  if (!lora.init_from.empty() && (!config || fs::exists(lora.init_from, ignored))) { // resumed runs need not have it
    if (!fs::is_regular_file(lora.init_from / kAdapterConfig, ignored)) {
      place(root, "model", "adapter")
          .fail(concat("there is no ", (lora.init_from / kAdapterConfig).string(), ", which a PEFT folder has"),
                concat("Name the folder that holds ", kAdapterConfig, " and adapter_model.safetensors."));
    }
    saved = read_adapter_config(lora.init_from, shapes);
  }
  if (!config) {
    config = config_of(*saved, names);
    lora = *saved;
  } else {
    if (config->targets.empty()) {
      config->targets = default_targets(run);
    }
    lora.rank = config->rank;
    lora.alpha = config->alpha;
    lora.dropout = config->dropout;
    lora.layers = matched_layers(config->targets, names);
    lora.whole_layers = models::layers_beside_adapters(shapes);
    if (saved) {
      check_agreement(root, lora, *saved);
    }
  }
  run.training.freeze.lora = lora;
  if (!run.training.export_to.empty() && run.model.init_from().empty()) {
    place(root, "training", "export")
        .fail("adapters are exported for a base model, and this run begins with random weights",
              "Name the base model as model.from, or export after the run: trireme export --merge.");
  }
}

std::vector<std::string> target_endings(const std::set<std::string>& layers, const std::vector<std::string>& all) {
  std::set<std::string> endings;
  for (const std::string& layer : layers) {
    std::string chosen = layer;
    for (size_t dot = layer.rfind('.'); dot != std::string::npos; dot = dot == 0 ? dot : layer.rfind('.', dot - 1)) {
      const std::string ending = layer.substr(dot + 1);
      if (std::all_of(all.begin(), all.end(), [&](const std::string& name) {
            return !ends_with_name(name, ending) || layers.contains(name);
          })) {
        chosen = ending;
        break;
      }
      if (dot == 0) {
        break;
      }
    }
    endings.insert(chosen);
  }
  return {endings.begin(), endings.end()};
}

} // namespace trireme::config
