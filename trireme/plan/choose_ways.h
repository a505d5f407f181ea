#pragma once

#include <trireme/activations/ways.h>
#include <trireme/plan/cluster.h>
#include <trireme/plan/layout.h>

#include <string>
#include <vector>

namespace trireme::plan {

/// What "auto" of activation_checkpointing comes to.
struct ChosenWays {
  /// As activations::Options::choices has them.
  std::vector<activations::Way> choices;
  /// Why nothing fits memory_budget, or the disk beside it, on some stage; empty: it does.
  std::string refused = {};
};

/// The choice of ranks in a planned layout: activations::choose(), as theirs is, for each stage, with planned costs where they have measured ones.
/// `run`: run_of() the layout. Not `may_use_host`: nothing is moved to the host of a card. Cost: that of choose() for each stage; stages that are alike, of this or another layout, are worked out once.
ChosenWays choose_ways(const Cluster& cluster, const Job& job, const Layout& layout, const estimate::Run& run, Shared& shared, bool may_use_host = true);

/// Whether anything of activations could be moved on these hosts.
bool may_move_activations(const Cluster& cluster, const estimate::Run& run);

/// The job with these ways in place of "auto".
Job with_choices(const Job& job, std::vector<activations::Way> choices);

} // namespace trireme::plan
