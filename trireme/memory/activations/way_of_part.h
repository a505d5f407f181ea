#pragma once

#include <trireme/memory/activations/options.h>

#include <cstddef>

namespace trireme::activations {

/// The effective policy: on the CPU activations are in host memory already and stay there.
constexpr Way usable(Way way, bool on_device) {
  return on_device || !to_host(way) ? way : way == Way::host ? Way::keep : Way::recompute;
}

/// The policy of the part at `place`, unless it is chosen (Options::automatic): that of `choices`, which must have an
/// entry for it, or `policy`, or the part's own.
Way way_of_part(const Options& options, size_t place, bool recomputes_itself, bool on_device);

} // namespace trireme::activations
