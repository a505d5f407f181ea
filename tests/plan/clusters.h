#pragma once

#include <trireme/plan/layout.h>

#include <cstdint>

/// The machines and models that these tests plan for.
namespace trireme::plan {

inline constexpr double kInfinite = 1e30;

/// Bytes a second, and seconds of a message.
struct Link {
  double bandwidth = kInfinite;
  double latency = 0;
};

/// Ranks that each have a processor. They neither compute nor hold anything yet.
inline Cluster hosts_of(int64_t hosts, int64_t ranks_per_host, Link inside, Link between = {}) {
  Cluster out;
  out.hosts = hosts;
  out.ranks_per_host = out.processors = ranks_per_host;
  if (ranks_per_host > 1) {
    out.levels.push_back({"inside_host", ranks_per_host, inside.bandwidth, inside.latency});
  }
  if (hosts > 1) {
    out.levels.push_back({"between_hosts", out.ranks(), between.bandwidth, between.latency});
  }
  return out;
}

/// A host whose ranks only multiply matrices, so many operations a second: passes over memory and attention take no
/// time, and everything fits.
inline Cluster multiplying_host(int64_t ranks, double flops, Link inside) {
  Cluster out = hosts_of(1, ranks, inside);
  out.memory_bytes = int64_t{1} << 50;
  out.peak_flops = flops;
  out.products.points = {{1, flops}};
  out.attention.points = {{1, kInfinite}};
  out.memory_bandwidth = out.pass_bandwidth = kInfinite;
  return out;
}

inline Job gpt_job(int64_t layers, int64_t hidden, int64_t heads, int64_t length, int64_t vocabulary, int64_t batch) {
  Job out;
  out.model.layers = layers;
  out.model.hidden = hidden;
  out.model.heads = heads;
  out.model.sequence_length = length;
  out.model.vocab_size = vocabulary;
  out.batch = batch;
  return out;
}

} // namespace trireme::plan
