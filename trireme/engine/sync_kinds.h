#pragma once

#include <trireme/comm/group.h>
#include <trireme/config/engine_config.h>
#include <trireme/shards/data_parallel/gradient_sync.h>

#include <memory>
#include <string>
#include <string_view>
#include <variant>

namespace trireme::engine {

/// Arguments for making a GradientSync of an extension.
struct SyncInputs {
  const config::EngineConfig& config;
  const parallel::ReduceGroups& groups;
  /// Type of gradients in communication.
  at::ScalarType type;
  comm::Group everyone;
  /// The one for all-reduced or sharded gradients, for a kind that adds to it.
  std::unique_ptr<parallel::AllReduceSync> plain;
};

/// The options of the optimizer; null if the configuration names another one or none.
template <class Rule>
const Rule* rule_of(const config::EngineConfig& config) {
  return config.optimizer ? std::get_if<Rule>(&config.optimizer->rule) : nullptr;
}

/// A way to agree that a configuration can ask for, beside all-reduced and sharded gradients.
struct SyncKind {
  std::string_view name;
  bool (*is_on)(const config::EngineConfig& config);
  /// Its processes are in worlds of their own: they bring it by InitializeOptions::sync.
  bool is_brought = false;
};

/// The kind that the configuration asks for; null: gradients are all-reduced or sharded. Conflicting keys have been
/// refused before (config/compatibility.h).
const SyncKind* kind_of(const config::EngineConfig& config);

/// Makes a kind that is not brought. Defined in extensions/make_sync.cpp; in a build without extensions
/// (-DTRIREME_EXTENSIONS=OFF) in engine/no_extensions.cpp, which throws InputError.
std::unique_ptr<parallel::GradientSync> make_sync(const SyncKind& kind, SyncInputs inputs);

/// False in a build without extensions.
bool has_extensions();

/// Throws the InputError of a build without extensions. `what`: what asks for which extension.
[[noreturn]] void refuse_extension(std::string where, std::string what);

} // namespace trireme::engine
