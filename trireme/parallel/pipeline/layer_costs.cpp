#include <trireme/parallel/pipeline/layer_costs.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/parallel/pipeline/balance.h>

#include <algorithm>
#include <regex>

namespace trireme::pipeline {
namespace {

std::vector<double> match_costs(const std::vector<LayerSize>& layers, const std::string& text) {
  std::regex regex;
  try {
    regex = std::regex(text, std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& error) {
    throw InputError("pipeline",
                     concat("partition \"type:", text, "\": the regular expression is wrong: ", error.what()));
  }
  std::vector<double> costs;
  std::vector<std::string> types;
  for (const LayerSize& layer : layers) {
    costs.push_back(std::regex_search(layer.type, regex) ? 1 : 0);
    if (std::find(types.begin(), types.end(), layer.type) == types.end()) {
      types.push_back(layer.type);
    }
  }
  if (std::find(costs.begin(), costs.end(), 1.0) == costs.end()) {
    throw InputError("pipeline", concat("partition \"type:", text, "\" matches no layer."),
                     "Their types are: " + join(types, ", ") + ".");
  }
  return costs;
}

} // namespace

std::vector<double> layer_costs(const std::vector<LayerSize>& layers, const std::string& method) {
  constexpr std::string_view kType = "type:";
  if (method.compare(0, kType.size(), kType) == 0) {
    return match_costs(layers, method.substr(kType.size()));
  }
  if (method != "parameters" && method != "uniform") {
    throw InputError("pipeline", concat("there is no partition \"", method, "\"."),
                     did_you_mean(method, {"parameters", "uniform", "type:REGEX", "profile", "memory"}));
  }
  std::vector<double> costs;
  for (const LayerSize& layer : layers) {
    costs.push_back(method == "uniform" ? 1 : static_cast<double>(layer.parameters));
  }
  return costs;
}

std::vector<int64_t> partition_bounds(const std::vector<double>& costs, const std::string& method, int64_t parts,
                                      bool allow_empty) {
  return method == "uniform" ? uniform(std::ssize(costs), parts, allow_empty) : balance(costs, parts, allow_empty);
}

} // namespace trireme::pipeline
