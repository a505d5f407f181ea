#pragma once

#include <cstdint>

namespace trireme::zero {

/// What the data-parallel ranks have shards of.
struct Sharding {
  bool states = false;
  bool gradients = false;
  bool parameters = false;
};

/// By ZeRO's stage and the number of data ranks. A rank alone has one shard of what is elsewhere between uses: its
/// parameters, or on a device its gradients, then have memory by the bucket only.
constexpr Sharding sharding_of(int stage, int64_t ranks, bool moves_parameters, bool moves_gradients) {
  Sharding sharding;
  sharding.parameters = stage >= 3 && (ranks > 1 || moves_parameters);
  sharding.states = (stage >= 1 && ranks > 1) || sharding.parameters;
  sharding.gradients = stage >= 2 && (sharding.states || moves_gradients);
  return sharding;
}

} // namespace trireme::zero
