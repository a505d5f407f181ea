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

/// Where a choice may move activations.
enum class MayMove { to_hosts_and_files, to_files, nowhere };

/// The result of "auto" of activation_checkpointing.
struct ChosenWays {
  /// In the form of activations::Options::choices.
  std::vector<activations::Way> choices;
  /// Why some stage fits neither memory_budget nor the disk; empty: all fit.
  std::string refused = {};
};

/// Needs of the ranks of a planned layout.
struct Needs {
  estimate::StageLayouts layouts;
  std::vector<estimate::StageMemory> memory = {};
  std::vector<estimate::StageMoves> moves = {}; ///< empty: no moves
};

/// Makes, for each stage, the choice that its ranks would make by activations::choose(). It uses planned costs instead
/// of measured ones. `needs` is that of run_of() for the layout. `may_move` is limited to what the cluster has. Cost:
/// that of choose() per stage; equal stages, also of other layouts, are computed once.
ChosenWays choose_ways(const Cluster& cluster, const Job& job, const Layout& layout, const Needs& needs, Shared& shared,
                       MayMove may_move = MayMove::to_hosts_and_files);

/// Whether activations can be moved on these hosts.
bool may_move_activations(const Cluster& cluster, const estimate::Run& run);

/// The options with this policy for all parts.
activations::Options in_one_way(activations::Options options, activations::Way way);

/// The job with these policies instead of "auto".
Job with_choices(const Job& job, std::vector<activations::Way> choices);

} // namespace trireme::plan
