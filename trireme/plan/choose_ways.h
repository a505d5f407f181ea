#pragma once

#include <trireme/memory/activations/options.h>
#include <trireme/plan/cluster.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/estimate/moves.h>
#include <trireme/plan/estimate/stage_layouts.h>
#include <trireme/plan/layout.h>

#include <string>
#include <vector>

namespace trireme::plan {

/// Where activations may go in a choice.
enum class MayMove { to_hosts_and_files, to_files, nowhere };

/// What "auto" of activation_checkpointing comes to.
struct ChosenWays {
  /// As activations::Options::choices has them.
  std::vector<activations::Way> choices;
  /// Why nothing fits memory_budget, or the disk beside it, on some stage; empty: it does.
  std::string refused = {};
};

/// What the ranks of a planned layout need.
struct Needs {
  estimate::StageLayouts layouts;
  std::vector<estimate::StageMemory> memory = {};
  std::vector<estimate::StageMoves> moves = {}; ///< empty: nothing is moved
};

/// The choice of ranks in a planned layout: activations::choose(), as theirs is, for each stage, with planned costs
/// where they have measured ones. `needs`: of the run of the layout, run_of(). `may_move`: as far as the cluster has
/// it. Cost: that of choose() for each stage; stages that are alike, of this or another layout, are worked out once.
ChosenWays choose_ways(const Cluster& cluster, const Job& job, const Layout& layout, const Needs& needs, Shared& shared,
                       MayMove may_move = MayMove::to_hosts_and_files);

/// Whether anything of activations could be moved on these hosts.
bool may_move_activations(const Cluster& cluster, const estimate::Run& run);

/// The same with this way for all parts.
activations::Options in_one_way(activations::Options options, activations::Way way);

/// The job with these ways in place of "auto".
Job with_choices(const Job& job, std::vector<activations::Way> choices);

} // namespace trireme::plan
