#pragma once

#include "clusters.h"

#include <cstdint>

namespace trireme::plan {

/// Ranks that only multiply matrices, at 1e9 operations a second; links of 1e6 bytes a second.
inline Cluster multiplying(int64_t ranks, double overlap = 1) {
  Cluster out = multiplying_host(ranks, 1e9, {1e6});
  out.overlap = overlap;
  return out;
}

/// A small GPT for them.
inline Job job(int64_t layers = 4, int64_t batch = 8) {
  Job out = gpt_job(layers, 64, 4, 16, 100, batch);
  out.base.clips = false;
  return out;
}

} // namespace trireme::plan
