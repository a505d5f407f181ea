#include <trireme/config/freeze.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <functional>
#include <set>

namespace trireme::config {

std::vector<bool> frozen_among(const FreezeOptions& options, const std::vector<std::string>& names) {
  std::vector<bool> frozen(names.size(), false);
  if (options.lora) {
    std::transform(names.begin(), names.end(), frozen.begin(),
                   [&](const std::string& name) { return !options.lora->trains(name); });
  }
  for (const Expression& expression : options.expressions) {
    const std::vector<bool> matches = matches_of(expression, names);
    std::transform(matches.begin(), matches.end(), frozen.begin(), frozen.begin(), std::logical_or<>());
  }
  return frozen;
}

std::vector<bool> frozen_of_all(const FreezeOptions& options, const std::vector<std::string>& names) {
  const std::set<std::string> distinct(names.begin(), names.end()); // layers may share a parameter
  for (const Expression& expression : options.expressions) {
    const std::vector<bool> matches = matches_of(expression, names);
    if (std::find(matches.begin(), matches.end(), true) == matches.end()) {
      throw InputError(
          "config",
          concat(expression.place, ": \"", printable(expression.text), "\" matches no parameter of the model"),
          concat("The nearest names are: ", nearest_names(expression.text, distinct), '.'));
    }
  }
  std::vector<bool> frozen = frozen_among(options, names);
  if (!options.expressions.empty() && std::find(frozen.begin(), frozen.end(), false) == frozen.end()) {
    throw InputError("config",
                     concat(options.expressions.front().place, ": the expressions match all ",
                            options.lora ? "adapters" : concat(distinct.size(), " parameters"),
                            " of the model, so nothing is left to train"),
                     "Remove one of them, or make it match fewer names.");
  }
  return frozen;
}

} // namespace trireme::config
