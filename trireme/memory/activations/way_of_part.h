#pragma once

#include <trireme/memory/activations/options.h>

#include <cstddef>

namespace trireme::activations {

/// The way as it is used: on the CPU what goes to the host is there already, and stays.
constexpr Way usable(Way way, bool on_device) {
  return on_device || !to_host(way) ? way : way == Way::host ? Way::keep : Way::recompute;
}

/// The way of the part at `place`, unless it is chosen (Options::automatic): that of `choices`, which must have one for
/// it, or `policy`, or what the part does by itself.
Way way_of_part(const Options& options, size_t place, bool recomputes_itself, bool on_device);

} // namespace trireme::activations
