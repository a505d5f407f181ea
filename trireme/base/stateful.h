#pragma once

#include <nlohmann/json_fwd.hpp>

namespace trireme {

/// An object whose small state belongs in a checkpoint: a sampler's position, a
/// schedule's step, a loss scale. Tensors are saved as shards of flat buffers instead
/// (checkpoint/).
class Stateful {
 public:
  virtual ~Stateful() = default;
  virtual nlohmann::json state() const = 0;
  /// Throws InputError when `state` was written by something else.
  virtual void load_state(const nlohmann::json& state) = 0;
};

} // namespace trireme
