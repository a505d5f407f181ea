#include <trireme/config/activations_json.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <array>
#include <charconv>
#include <cmath>
#include <regex>

namespace trireme::config {
namespace {

using activations::Way;

constexpr double kMostBytes = 1e18;

// "1.5GB", "512 MiB", "1000000", 1000000.
int64_t read_bytes(const JsonNode& node) {
  constexpr const char* kNext =
      "Write a number of bytes, or one with a unit in quotes: \"2GB\", \"1.5GiB\", \"800MB\".";
  if (node.kind() != JsonNode::Kind::string) {
    const int64_t bytes = node.as_integer();
    if (bytes < 1) {
      node.fail(concat("expected a number of bytes, got ", bytes), kNext);
    }
    return bytes;
  }
  const std::string& text = node.as_string();
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  std::string unit = lower(std::string_view(stopped, static_cast<size_t>(end - stopped)));
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? 0 : unit.find_first_not_of(' '));
  constexpr std::array<std::pair<std::string_view, double>, 10> kUnits = {{{"", 1},
                                                                           {"b", 1},
                                                                           {"kb", 1e3},
                                                                           {"mb", 1e6},
                                                                           {"gb", 1e9},
                                                                           {"tb", 1e12},
                                                                           {"kib", 0x1p10},
                                                                           {"mib", 0x1p20},
                                                                           {"gib", 0x1p30},
                                                                           {"tib", 0x1p40}}};
  for (const auto& [name, bytes] : kUnits) {
    if (error == std::errc() && unit == name && number > 0 && number * bytes >= 1 && number * bytes <= kMostBytes) {
      return static_cast<int64_t>(std::llround(number * bytes));
    }
  }
  node.fail(concat("expected a number of bytes, got \"", text, '"'), kNext);
}

} // namespace

activations::Options read_activations(const Values& values) {
  activations::Options out;
  if (!values.present()) {
    return out;
  }
  if (const auto policy = values.maybe<std::string>("policy")) {
    out.automatic = *policy == "auto";
    out.policy = activations::way_of(*policy);
  }
  if (const JsonNode* const choices = values.find("choices")) {
    if (out.policy || out.automatic) {
      choices->fail("choices and policy both set the policy of each part", "Leave one of them out.");
    }
    try {
      out.choices = activations::from_words(values.get<std::vector<std::string>>("choices", {}));
    } catch (const InputError& error) {
      choices->fail(error.what());
    }
    if (out.choices.empty()) {
      choices->fail("is empty", "List a policy for every part, or leave it out.");
    }
  }
  const JsonNode* const budget = values.find("memory_budget");
  if (budget != nullptr) {
    if (!out.automatic) {
      budget->fail("has no effect without policy auto", "Write \"policy\": \"auto\", or leave it out.");
    }
    out.memory_budget = read_bytes(*budget);
  } else if (out.automatic) {
    values.node().fail("policy auto needs a memory_budget",
                       "Write the most that activations of a rank may take: \"memory_budget\": \"2GB\".");
  }
  out.layers = values.get("layers", out.layers);
  if (const JsonNode* const layers = values.find("layers")) {
    constexpr size_t kLongestPattern = 1000;
    if (out.layers.size() > kLongestPattern) { // std::regex calls itself for every bracket
      layers->fail(concat("the regular expression has more than ", kLongestPattern, " characters"));
    }
    try {
      std::regex(out.layers);
    } catch (const std::regex_error& error) {
      layers->fail(concat("the regular expression is wrong: ", error.what()));
    }
  }
  out.nvme_path = values.get("nvme_path", out.nvme_path);
  if (out.nvme_path.empty() && out.uses_nvme()) {
    values.node().fail("activations in files need an nvme_path",
                       "Name a folder on a local disk: \"nvme_path\": \"/local_nvme\".");
  }
  out.inputs_to_host = values.get("cpu_checkpointing", out.inputs_to_host);
  out.shares_inputs = values.get("partition_activations", out.shares_inputs);
  out.profile = values.get("profile", out.profile);
  return out;
}

nlohmann::ordered_json to_json(const activations::Options& options) {
  using nlohmann::ordered_json;
  const auto text = [](const std::string& value) {
    return value.empty() ? ordered_json(nullptr) : ordered_json(value);
  };
  ordered_json out;
  out["policy"] = options.automatic ? ordered_json("auto")
                  : options.policy  ? ordered_json(activations::name_of(*options.policy))
                                    : ordered_json(nullptr);
  out["memory_budget"] = options.automatic ? ordered_json(concat(options.memory_budget, 'B')) : ordered_json(nullptr);
  out["choices"] =
      options.choices.empty() ? ordered_json(nullptr) : ordered_json(activations::to_words(options.choices));
  out["layers"] = text(options.layers);
  out["nvme_path"] = text(options.nvme_path);
  out["cpu_checkpointing"] = options.inputs_to_host;
  out["partition_activations"] = options.shares_inputs;
  out["profile"] = options.profile;
  return out;
}

} // namespace trireme::config
