#pragma once

#include <trireme/memory/activations/ways.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::activations {

/// Bytes that each of `ranks` keeps of memory of `bytes` of which they keep shares: a multiple of 16.
constexpr int64_t share_of(int64_t bytes, int64_t ranks) {
  return ((bytes + ranks - 1) / ranks + 15) / 16 * 16;
}

/// What becomes of activations between forward and backward: the section "activation_checkpointing" of the
/// configuration.
struct Options {
  /// Every part is treated so. Absent: as the model says by itself, which recomputes or keeps.
  std::optional<Way> policy = {};
  /// The way of each part is chosen by measured cost so that their activations fit `memory_budget`.
  bool automatic = false;
  /// The way of each part, in the order in which a forward calls them; empty: see the two above.
  std::vector<Way> choices = {};
  /// Bytes that the activations of all parts may take at a time in the memory where the model is; 0: no limit. For
  /// `automatic`.
  int64_t memory_budget = 0;
  /// A regular expression: parts are the modules whose class name has a match; empty: all that may be.
  std::string layers = {};
  /// The folder for files; needed for the ways that say nvme. The files have no names there: whatever happens to the
  /// process, nothing stays.
  std::string nvme_path = {};
  /// Inputs of parts that are recomputed go to the host (DeepSpeed's cpu_checkpointing).
  bool inputs_to_host = false;
  /// Of inputs that all tensor ranks have, each keeps a share until the part is computed again (DeepSpeed's
  /// partition_activations): sharing.h.
  bool shares_inputs = false;
  /// Logs what each part costs, once, after the second step.
  bool profile = false;
  /// Ranks that share the host's memory and its disk, this one included.
  int64_t ranks_on_host = 1;
  /// Storages of fewer bytes stay where they are.
  int64_t least_bytes = 4096;

  /// Whether anything here is asked for.
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
