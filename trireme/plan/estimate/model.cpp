#include <trireme/plan/estimate/model.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace trireme::estimate {
namespace {

template <typename Counts>
int64_t elements(const Model& model, const Counts& counts) {
  std::set<std::string> seen;
  int64_t sum = 0;
  for (const Layer& layer : model.layers) {
    for (const Parameter& parameter : layer.parameters) {
      const bool is_first = layer.tie.empty() || seen.insert(layer.tie + ' ' + parameter.name).second;
      sum += is_first && counts(parameter) ? parameter.numel : 0;
    }
  }
  return sum;
}

} // namespace

int64_t Model::parameters() const {
  return elements(*this, [](const Parameter&) { return true; });
}

int64_t Model::trained_parameters() const {
  return elements(*this, [](const Parameter& parameter) { return parameter.trained; });
}

int64_t Model::first_trained() const {
  const auto first = std::ranges::find_if(
      layers, [](const Layer& layer) { return std::ranges::any_of(layer.parameters, &Parameter::trained); });
  return std::distance(layers.begin(), first);
}

} // namespace trireme::estimate
