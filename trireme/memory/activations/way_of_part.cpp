#include <trireme/memory/activations/way_of_part.h>

namespace trireme::activations {

Way way_of_part(const Options& options, size_t place, bool recomputes_itself, bool on_device) {
  if (!options.choices.empty()) {
    return usable(options.choices.at(place), on_device);
  }
  const Way way = options.policy.value_or(recomputes_itself ? Way::recompute : Way::keep);
  return usable(options.inputs_to_host && way == Way::recompute ? Way::recompute_host : way, on_device);
}

} // namespace trireme::activations
