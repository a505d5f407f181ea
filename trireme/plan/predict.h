#pragma once

#include <trireme/plan/cluster.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/moves.h>
#include <trireme/plan/layer_cost.h>
#include <trireme/plan/layout.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::plan {

/// Bytes that a rank sends per step along an axis of the mesh over a kind of link, on the stage with most. Collectives
/// across hosts have an entry for each kind.
struct AxisBytes {
  std::string axis;
  std::string link;
  int64_t bytes = 0;
};

/// Bytes that a rank moves per step over a link of its host, on the stage with most.
struct MovedBytes {
  estimate::Way way = estimate::Way::to_host;
  int64_t bytes = 0;
};

struct Prediction {
  Layout layout;
  /// Why the layout cannot run; empty: it can. If set, the times are 0.
  std::string refused = {};
  /// Memory of the rank that needs most, by category (estimate::kCategories), and its sum; empty for layouts that
  /// cannot be built.
  std::vector<estimate::Item> memory = {};
  int64_t memory_bytes = 0;
  /// The same rank's bytes on its host and in files, and all bytes of the host that needs most, including those without
  /// offload.
  std::vector<estimate::Item> on_host = {};
  std::vector<estimate::Item> in_files = {};
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;
  /// Share of the pipeline's time in which a stage computes nothing.
  double bubble = 0;
  /// Activation policies, if the job lists them or "auto" chooses: activations::Options::choices.
  std::vector<activations::Way> choices = {};
  double step_seconds = 0;
  /// Parts of the step: computation with the collectives between layers and the bubble; exposed sums of gradients; the
  /// optimizer with the gathers of parameters.
  double pipeline_seconds = 0;
  double reduce_seconds = 0;
  double optimizer_seconds = 0;
  std::vector<AxisBytes> traffic = {};
  std::vector<MovedBytes> moved = {};

  bool moves_nothing() const { return layout.moves_nothing() && moved.empty() && disk_bytes == 0; }
};

/// Simulates one step. The programs of the pipeline's stages run with the costs of their layers and messages
/// (pipeline::simulate). Gradients of a stage are reduced during its last backward; what does not overlap is added, and
/// the last bucket never overlaps. ZeRO stage 2 without a pipeline reduces in every micro-batch; stage 3 gathers for
/// every forward and backward. The optimizer begins after the slowest stage. If a host has fewer processors than ranks,
/// a step takes at least the ranks' work divided by the processors.
///
/// Offload: moves of gradients, units and activations overlap computation; in one direction of a link, or on one disk,
/// they add up. Buckets of the optimizer are read, stepped on the host, written and sent back in a pipeline: the
/// slowest of these counts, and one bucket of each of the others. A delayed update overlaps the whole next step. If
/// "auto" chooses activation policies, choose_ways() runs first; a choice that does not fit is refused.
///
/// Cost: proportional to stages x micro-batches x chunks; that of choose_ways() for a choice.
Prediction predict(const Cluster& cluster, const Job& job, const Layout& layout, Shared& shared);
Prediction predict(const Cluster& cluster, const Job& job, const Layout& layout);

/// The same without times and traffic.
Prediction memory_only(const Cluster& cluster, const Job& job, const Layout& layout, Shared& shared);

/// Lower bound of the layout's seconds. A stage begins when the first micro-batch has passed the stages before it, and
/// does all its work; with 1f1b its last backward then passes them again. `costs` are layer_costs() of the layout.
double least_seconds(const Cluster& cluster, const Job& job, const Layout& layout, const std::vector<LayerCost>& costs,
                     Shared& shared);

/// Lower bound of the bytes of a micro-batch that every block keeps from forward to backward, with any policy.
int64_t least_of_a_block(const Job& job, const Layout& layout, bool on_device = true);

/// Lower bound of a rank's bytes: model states divided evenly over the stages, and the activations that blocks of the
/// first stage keep with 1f1b. No schedule in the search keeps less. `block_kept`: least_of_a_block() of the layout.
int64_t least_memory(const Job& job, const Layout& layout, int64_t parameters, int64_t block_kept,
                     bool on_device = true);

} // namespace trireme::plan
