#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::plan {

/// Speed of matrix products by their size, (m n k)^(1/3): points by size, on a straight line over the logarithm between
/// them, the nearest point's outside.
struct SpeedCurve {
  struct Point {
    double size = 0;
    double flops = 0; ///< a second
  };
  std::vector<Point> points;

  double at(double size) const;
};

/// A kind of link, from the inside of a host outwards. Units of `ranks` neighbours are connected by it; the next level
/// connects these units.
struct Level {
  std::string name;
  int64_t ranks = 1;
  /// Bytes a second that a rank sends, and receives at the same time, while all ranks of the unit do.
  double bandwidth = 0;
  /// Seconds of one message.
  double latency = 0;
};

/// What a host offers to what its ranks move out of their cards. All ranks of the host together, but for the link.
struct HostMemory {
  /// 0: nothing is known of it, and nothing is moved there.
  int64_t memory_bytes = 0;
  int64_t reserved_bytes = 0;
  /// Bytes a second of an optimizer on all its cores.
  double memory_bandwidth = 0;
  /// Bytes a second between a card and the host, each way, while all ranks use theirs.
  double link_bandwidth = 0;
};

/// Disks of a host, for all its ranks together.
struct Disk {
  /// 0: there is none to use.
  int64_t bytes = 0;
  /// Bytes a second, each alone: what is read and written at the same time takes the sum of both times.
  double read_bandwidth = 0;
  double write_bandwidth = 0;
};

/// What a run can be planned for: equal hosts with equal ranks. Ranks are numbered host by host.
struct Cluster {
  std::string name;
  int64_t hosts = 1;
  int64_t ranks_per_host = 1;

  /// Of one rank.
  int64_t memory_bytes = 0;
  /// What the run's own memory does not include: a card's context, say.
  int64_t reserved_bytes = 0;
  /// Ranks compute on the host: its memory holds data and libtorch too.
  bool on_host = false;
  /// Arithmetic operations a second, at most and in matrix products.
  double peak_flops = 0;
  SpeedCurve products;
  /// Of attention; empty: those of a product of its size.
  SpeedCurve attention;
  /// Bytes a second of a loop over memory (an optimizer), and of the passes between matrix products (norms,
  /// activations).
  double memory_bandwidth = 0;
  double pass_bandwidth = 0;
  /// Seconds that a block costs beside its work, forward and again backward; other layers, which are fewer operations,
  /// a share of it.
  double layer_seconds = 0;
  /// Seconds more that the weights of a block cost, forward and again backward; tensor ranks share them.
  double weight_seconds = 0;
  /// Share of communication that may hide behind computation: 1 where a card sends by itself, 0 where the same cores do
  /// both.
  double overlap = 1;
  /// Ranks of a host that compute at the same time at the speeds above: fewer than ranks_per_host where ranks share
  /// cores.
  int64_t processors = 1;

  /// Whether collectives use the links of all their members on a host together. Else they are one ring over all ranks.
  bool hierarchical = true;
  /// What an all-reduce takes, in all-gathers of as many bytes: 2 over links (a reduce-scatter and an all-gather), less
  /// where ranks share memory.
  double all_reduce_gathers = 2;

  HostMemory host;
  Disk disk;

  /// The last one connects all.
  std::vector<Level> levels;

  int64_t ranks() const {
    return hosts * ranks_per_host;
  }
  /// Whether ranks are cards whose hosts have memory that is described.
  bool has_hosts_beside() const {
    return !on_host && host.memory_bytes > 0;
  }
  /// How much longer a rank computes than at the speeds above while all of its host do: at least 1.
  double sharing() const {
    return std::max(1.0, static_cast<double>(ranks_per_host) / static_cast<double>(processors));
  }
};

/// Reads a description; docs/plan.md lists its keys. Errors: InputError with file, line, column and key.
Cluster read_cluster(const std::filesystem::path& file);
Cluster parse_cluster(const std::string& text, const std::string& source);

/// Writes a description that read_cluster() reads.
std::string write_cluster(const Cluster& cluster);

} // namespace trireme::plan
