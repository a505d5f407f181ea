#pragma once

#include <trireme/offload/options.h>

#include <cstdint>
#include <string>

namespace trireme::offload {

/// What else of a run decides whether kinds of offload go together.
struct Setting {
  int zero_stage = 0;
  /// What ranks train on: "cuda:0". Empty: the CPU, whose memory is the host's already.
  std::string device = {};
  /// What works on masters and states where the gradients are: "parameter_averaging". Empty: nothing does.
  std::string exchanges_values = {};
  bool steps_in_backward = false;
  /// The name of an optimizer that needs the norms of whole parameters ("LAMB"); empty: it does not.
  std::string needs_norms = {};
  bool has_servers = false;
};

/// What does not go together, and what to do about it. Empty: all of it does.
struct Conflict {
  std::string what;
  std::string next;
};

/// The one answer for ranks, estimate and plan.
Conflict conflict(const Options& options, const Setting& setting);

/// A note on offload_param: a rank has no sharded parameters at all, or of its `all` elements of them, of
/// `element_bytes` each, `kept` stay in memory, as max_in_cpu, which is large by default, says. Empty: all are moved.
std::string what_is_not_moved(int64_t all, int64_t kept, int64_t element_bytes, const ParameterOptions& options,
                              int64_t persistence_threshold);

} // namespace trireme::offload
