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

/// What a rank sends in a step along an axis of the mesh over a kind of link, on the stage where it is most.
/// Collectives over hosts have an entry for each kind.
struct AxisBytes {
  std::string axis;
  std::string link;
  int64_t bytes = 0;
};

/// What a rank moves in a step over a link of its host, on the stage where it is most.
struct MovedBytes {
  estimate::Way way = estimate::Way::to_host;
  int64_t bytes = 0;
};

struct Prediction {
  Layout layout;
  /// Why the layout cannot run; empty: it can. Then the times are 0.
  std::string refused = {};
  /// Of the rank that needs most, by category (estimate::kCategories), and all of it; empty for layouts that cannot be
  /// built.
  std::vector<estimate::Item> memory = {};
  int64_t memory_bytes = 0;
  /// The same rank's on its host and in files, and all of the host that needs most: with what its ranks have there
  /// without offload.
  std::vector<estimate::Item> on_host = {};
  std::vector<estimate::Item> in_files = {};
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;
  /// Share of the pipeline's time in which a stage computes nothing.
  double bubble = 0;
  /// The ways of activations, where the job has a list of them or "auto" chooses: activations::Options::choices.
  std::vector<activations::Way> choices = {};
  double step_seconds = 0;
  /// What the step consists of: computation with the collectives between layers and the bubble; sums of gradients that
  /// hide behind nothing; the optimizer with the gathers of parameters.
  double pipeline_seconds = 0;
  double reduce_seconds = 0;
  double optimizer_seconds = 0;
  std::vector<AxisBytes> traffic = {};
  std::vector<MovedBytes> moved = {};

  bool moves_nothing() const {
    return layout.moves_nothing() && moved.empty() && disk_bytes == 0;
  }
};

/// Simulates one step. The programs of the pipeline's stages run with the costs of their layers and messages
/// (pipeline::simulate). In a stage's last backward its gradients begin to travel; what does not hide there is added,
/// the last bucket never hides. ZeRO stage 2 without a pipeline reduces in every micro-batch, stage 3 gathers for every
/// forward and backward. The slowest stage decides when the optimizer begins. Where a host has fewer processors than
/// ranks a step takes at least all their work over the processors.
///
/// Offload: gradients that leave, units that come, and activations in both directions hide behind the computation
/// beside them; on one direction of a link, or one disk, they add up. The optimizer's buckets are read, stepped on the
/// host, written and sent back one behind the other, so the slowest of these counts, and of the others one bucket. With
/// a delayed update all of it hides behind the next step. Where "auto" chooses ways of activations they are chosen
/// first (choose_ways()); a choice that does not fit is refused. Cost: proportional to stages x micro-batches x chunks;
/// of a choice that of choose_ways().
Prediction predict(const Cluster& cluster, const Job& job, const Layout& layout, Shared& shared);
Prediction predict(const Cluster& cluster, const Job& job, const Layout& layout);

/// The same without times and traffic.
Prediction memory_only(const Cluster& cluster, const Job& job, const Layout& layout, Shared& shared);

/// Seconds that the layout needs at least: a stage begins when the first micro-batch has come through those before it,
/// does all its work, and with 1f1b its last backward then goes back through them. `costs` are layer_costs() of the
/// layout.
double least_seconds(const Cluster& cluster, const Job& job, const Layout& layout, const std::vector<LayerCost>& costs,
                     Shared& shared);

/// Bytes of a micro-batch that every block keeps at least from forward to backward, whatever its way.
int64_t least_of_a_block(const Job& job, const Layout& layout, bool on_device = true);

/// Bytes that a rank needs at least: model states divided evenly over the stages. Activations: what blocks of the first
/// stage keep with 1f1b; no schedule that is searched keeps less. `block_kept`: least_of_a_block() of the layout.
int64_t least_memory(const Job& job, const Layout& layout, int64_t parameters, int64_t block_kept,
                     bool on_device = true);

} // namespace trireme::plan
