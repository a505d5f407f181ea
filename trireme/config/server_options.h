#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::parallel {

/// Options of parameter servers: how many there are, and when workers wait for each other.
struct ServerOptions {
  /// - sync: A step is the mean of all workers' gradients, as in data parallelism.
  /// - async: Each gradient is a step at once.
  /// - stale: As async, but no worker is more than `staleness` steps ahead of the slowest. SSP: Ho et al. 2013, "More
  ///   effective distributed ML via a stale synchronous parallel parameter server".
  /// - hybrid: A step waits for all workers, at most `timeout_s` after the first gradient; later gradients are dropped.
  ///   Backup workers: Chen et al. 2016, arXiv:1604.00981.
  enum class Mode { sync, async, stale, hybrid };

  /// 0: no servers; the ranks exchange gradients among themselves.
  int64_t servers = 0;
  Mode mode = Mode::sync;
  int64_t staleness = 0;
  double timeout_s = 1;
  /// Number of updates between two snapshots of a server; 0: only when it ends.
  int64_t snapshot_every = 100;
  /// Regular expressions that match a parameter's name from its beginning (std::regex, ECMAScript), usually embeddings.
  /// The parameters need two dimensions or more. Only rows with a gradient are pushed and stepped (lazy updates), and
  /// only rows that have changed are sent back.
  std::vector<std::string> sparse_rows;

  bool on() const { return servers > 0; }
  /// True if the workers of a step share one gradient and one loss.
  bool together() const {
    return mode == Mode::sync || mode == Mode::hybrid || (mode == Mode::stale && staleness == 0);
  }
  static constexpr const char* name(Mode mode) {
    return mode == Mode::sync ? "sync" : mode == Mode::async ? "async" : mode == Mode::stale ? "stale" : "hybrid";
  }
};

} // namespace trireme::parallel
