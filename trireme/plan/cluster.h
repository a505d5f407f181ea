#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::plan {

/// Speed of matrix products by size (m n k)^(1/3). Between points it is linear in the logarithm of the size; outside of
/// them it is the nearest point's.
struct SpeedCurve {
  struct Point {
    double size = 0;
    double flops = 0; ///< per second
  };
  std::vector<Point> points;

  double at(double size) const;
};

/// A kind of link, from inside a host outwards. It connects units of `ranks` neighbouring ranks; the next level
/// connects these units.
struct Level {
  std::string name;
  int64_t ranks = 1;
  /// Bytes per second that a rank sends, while it receives as many and all ranks of the unit do the same.
  double bandwidth = 0;
  /// Seconds of one message.
  double latency = 0;
};

/// A host's resources for offload from GPUs, shared by all its ranks except the link.
struct HostMemory {
  /// 0: not described, and nothing is moved there.
  int64_t memory_bytes = 0;
  int64_t reserved_bytes = 0;
  /// Bytes per second of an optimizer on all its cores.
  double memory_bandwidth = 0;
  /// Bytes per second between a GPU and the host in each direction, while all ranks use their links.
  double link_bandwidth = 0;
};

/// The disks of a host, shared by all its ranks.
struct Disk {
  /// 0: no disk.
  int64_t bytes = 0;
  /// Bytes per second of reading or writing alone; doing both at the same time takes the sum of both times.
  double read_bandwidth = 0;
  double write_bandwidth = 0;
};

/// The machines to plan a run for: equal hosts with equal ranks, numbered host by host.
struct Cluster {
  std::string name;
  int64_t hosts = 1;
  int64_t ranks_per_host = 1;

  /// Memory of one rank.
  int64_t memory_bytes = 0;
  /// Memory that a run's estimate does not include, such as a GPU's context.
  int64_t reserved_bytes = 0;
  /// Ranks compute on the host, whose memory also holds data and libtorch.
  bool on_host = false;
  /// Arithmetic operations per second: peak, and in matrix products.
  double peak_flops = 0;
  SpeedCurve products;
  /// Speed of attention; empty: that of a product of its size.
  SpeedCurve attention;
  /// Bytes per second of a loop over memory (an optimizer), and of the passes between matrix products (norms,
  /// activations).
  double memory_bandwidth = 0;
  double pass_bandwidth = 0;
  /// Fixed seconds of a block, in forward and again in backward. Other layers, which have fewer operations, cost a
  /// share of it.
  double layer_seconds = 0;
  /// Further seconds for the weights of a block, in forward and again in backward; tensor ranks share them.
  double weight_seconds = 0;
  /// Share of communication that may overlap computation: 1 if a GPU sends on its own, 0 if the same cores do both.
  double overlap = 1;
  /// Ranks of a host that can compute at the same time at the speeds above; less than ranks_per_host if ranks share
  /// cores.
  int64_t processors = 1;

  /// Whether collectives use the links of all their ranks on a host at the same time. Otherwise they are one ring over
  /// all ranks.
  bool hierarchical = true;
  /// Cost of an all-reduce in all-gathers of the same bytes: 2 over links (a reduce-scatter and an all-gather), less in
  /// shared memory.
  double all_reduce_gathers = 2;

  HostMemory host;
  Disk disk;

  /// The last one connects all ranks.
  std::vector<Level> levels;

  int64_t ranks() const { return hosts * ranks_per_host; }
  /// Whether ranks are GPUs, and the memory of their hosts is described.
  bool has_hosts_beside() const { return !on_host && host.memory_bytes > 0; }
  /// Slowdown of a rank's computation while all ranks of its host compute: at least 1.
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
