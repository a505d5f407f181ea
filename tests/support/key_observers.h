#pragma once

#include <tests/support/run_ranks.h>

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::test {

/// Shows that an honoured key of the configuration does something: with `one` and with `other` as its value, what
/// `observe` sees of a run differs, and with `one` twice it does not.
struct KeyObserver {
  /// As in the key table (trireme/config/key_table.h): "engine.optimizer.params", "Adam AdamW", "lr".
  std::string_view section;
  std::string_view when;
  std::string_view key;
  /// null: the key is absent.
  nlohmann::json one;
  nlohmann::json other;
  /// What the run does and holds, with this configuration (a whole run file). Runs on all ranks; must not look at the
  /// configuration.
  std::function<nlohmann::json(comm::World&, const nlohmann::json& run)> observe;
  /// Merged into the common configuration before the key is set; null for nothing.
  nlohmann::json base = nlohmann::json::object();
  int ranks = 1;
};

/// Honoured keys for which `covers` and which have no observer, and observers of keys that are not honoured: one line
/// each. Left out are keys that only hold a section, and "type" where it says which section it is.
std::vector<std::string> without_observer(const std::vector<KeyObserver>& observers,
                                          const std::function<bool(std::string_view section)>& covers);

/// Runs every observer that wants `ranks` ranks, all in one world; returns one line for each that saw no difference.
std::vector<std::string> without_effect(const std::vector<KeyObserver>& observers, int ranks,
                                        const nlohmann::json& common);

} // namespace trireme::test
