#pragma once

#include <trireme/memory/activations/ways.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::activations {

/// Bytes of the share that each of `ranks` keeps of `bytes` bytes: a multiple of 16.
constexpr int64_t share_of(int64_t bytes, int64_t ranks) {
  return ((bytes + ranks - 1) / ranks + 15) / 16 * 16;
}

/// Policies for activations between forward and backward: section "activation_checkpointing" of the configuration.
struct Options {
  /// Policy of every part. Absent: the model's own choice, recompute or keep.
  std::optional<Way> policy = {};
  /// Chooses the policy of each part by measured cost, so that activations fit `memory_budget`.
  bool automatic = false;
  /// Policy of each part, in the order in which forward calls them; empty: see the two above.
  std::vector<Way> choices = {};
  /// With `automatic`: limit of the bytes of all parts' activations in the memory of the model; 0: no limit.
  int64_t memory_budget = 0;
  /// A regular expression: only modules whose class name matches are parts; empty: all possible ones.
  std::string layers = {};
  /// Folder of the files; required by nvme policies. The files have no names, so nothing is left after the process in
  /// any case.
  std::string nvme_path = {};
  /// Moves the inputs of recomputed parts to the host (DeepSpeed's cpu_checkpointing).
  bool inputs_to_host = false;
  /// Each tensor rank keeps a share of inputs that all have, until the part is recomputed (DeepSpeed's
  /// partition_activations): sharing.h.
  bool shares_inputs = false;
  /// Logs each part's cost, once, after the second step.
  bool profile = false;
  /// Ranks that share the host's memory and disk, this one included.
  int64_t ranks_on_host = 1;
  /// Smaller storages are not moved.
  int64_t least_bytes = 4096;

  /// Whether any option is set.
  bool on() const {
    return policy.has_value() || automatic || !choices.empty() || inputs_to_host || shares_inputs || profile;
  }
  bool uses_nvme() const {
    bool any = policy && to_nvme(*policy);
    for (const Way way : choices) {
      any = any || to_nvme(way);
    }
    return any || (automatic && !nvme_path.empty());
  }
};

} // namespace trireme::activations
