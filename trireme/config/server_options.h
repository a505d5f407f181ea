#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::parallel {

/// Parameter servers: who holds the parameters, and when workers wait for each other.
struct ServerOptions {
  /// sync: a step is the mean of all workers' gradients, as in data parallelism. async: each gradient is a step at
  /// once. stale: the same, and no worker is more than `staleness` steps ahead of the slowest (SSP: Ho et al. 2013,
  /// "More effective distributed ML via a stale synchronous parallel parameter server"). hybrid: a step waits for all
  /// workers, but not longer than `timeout_s` after the first has come; gradients that come later are dropped (Chen et
  /// al. 2016, arXiv:1604.00981, backup workers).
  enum class Mode { sync, async, stale, hybrid };

  /// 0: no servers, the ranks exchange gradients among themselves.
  int64_t servers = 0;
  Mode mode = Mode::sync;
  int64_t staleness = 0;
  double timeout_s = 1;
  /// Updates after which a server writes its part to its folder; 0: only when it ends.
  int64_t snapshot_every = 100;
  /// Regular expressions that match from the beginning of a parameter's name (std::regex, ECMAScript). Of such a
  /// parameter of two dimensions or more, an embedding as a rule, only the rows travel that have a gradient, or have
  /// changed, and only rows that have a gradient are stepped (lazy updates).
  std::vector<std::string> sparse_rows;

  bool on() const {
    return servers > 0;
  }
  /// Whether the workers of a step have one gradient, and one loss.
  bool together() const {
    return mode == Mode::sync || mode == Mode::hybrid || (mode == Mode::stale && staleness == 0);
  }
  static constexpr const char* name(Mode mode) {
    return mode == Mode::sync ? "sync" : mode == Mode::async ? "async" : mode == Mode::stale ? "stale" : "hybrid";
  }
};

} // namespace trireme::parallel
