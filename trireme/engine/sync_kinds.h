#pragma once

#include <trireme/comm/group.h>
#include <trireme/config/engine_config.h>
#include <trireme/parallel/data/gradient_sync.h>

#include <memory>

namespace trireme::engine {

/// What a GradientSync is made of.
struct SyncInputs {
  const config::EngineConfig& config;
  const parallel::ReduceGroups& groups;
  /// Type of gradients in communication.
  at::ScalarType type;
  comm::Group everyone;
  /// The one for all-reduced or sharded gradients, for a kind that adds to it.
  std::unique_ptr<parallel::AllReduceSync> plain;
};

/// A way to agree that a configuration can ask for, beside all-reduced and sharded gradients.
struct SyncKind {
  const char* name;
  bool (*is_on)(const config::EngineConfig& config);
  /// Null: of processes in worlds of their own, which bring it by InitializeOptions::sync.
  std::unique_ptr<parallel::GradientSync> (*make)(SyncInputs inputs);
};

/// The kind that the configuration asks for; null: gradients are all-reduced or sharded. What does not go together has
/// been refused (config/compatibility.h).
const SyncKind* kind_of(const config::EngineConfig& config);

} // namespace trireme::engine
