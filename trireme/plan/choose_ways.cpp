#include <trireme/plan/choose_ways.h>

#include <trireme/activations/choice.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/estimate/activations.h>
#include <trireme/estimate/moves.h>
#include <trireme/plan/layer_cost.h>
#include <trireme/plan/link_time.h>
#include <trireme/plan/move_time.h>

#include <algorithm>
#include <utility>

namespace trireme::plan {
namespace {

using activations::PartCost;
using PartWay = activations::Way;

Job keeping_all(Job job) {
  job.base.activations = in_one_way(std::move(job.base.activations), PartWay::keep);
  return job;
}

bool has_files(const Cluster& cluster, const estimate::Run& run) {
  return run.activations.uses_nvme() && cluster.disk.bytes > 0;
}

// What ranks measure of moves.
void add_moves(const Cluster& cluster, const estimate::Run& run, MayMove may_move, activations::Problem& problem) {
  const auto of = [&](PartWay way) {
    constexpr int64_t kBytes = int64_t{1} << 30;
    const ActivationTimes times = activation_times(cluster, kBytes, way);
    const auto each = [&](double over_link, double files) { return std::max(over_link, files) / static_cast<double>(kBytes); };
    return activations::MoveCost{each(times.leave_over_link, times.leave_to_files), each(times.back_over_link, times.back_from_files), times.copied / static_cast<double>(kBytes)};
  };
  problem.allowed = {PartWay::keep, PartWay::recompute};
  if (may_move == MayMove::to_hosts_and_files && cluster.has_hosts_beside()) {
    problem.host = of(PartWay::host);
    problem.allowed.insert(problem.allowed.end(), {PartWay::host, PartWay::recompute_host});
  }
  if (may_move != MayMove::nowhere && has_files(cluster, run)) {
    problem.nvme = of(PartWay::nvme);
    problem.allowed.insert(problem.allowed.end(), {PartWay::nvme, PartWay::recompute_nvme});
  }
}

// A stage's problem, and where its parts are in the model.
struct StageProblem {
  activations::Problem problem;
  std::vector<int64_t> layers;

  // Stages with the same are alike. Speeds and the budget are those of all.
  std::vector<double> key() const {
    std::vector<double> out = {static_cast<double>(problem.allowed.size()), problem.after_last, problem.gather, static_cast<double>(problem.file_room), static_cast<double>(problem.in_flight)};
    for (const PartCost& part : problem.parts) {
      out.insert(out.end(), {static_cast<double>(part.bytes), static_cast<double>(part.input_bytes), static_cast<double>(part.share_bytes), part.forward, part.backward});
    }
    return out;
  }
};

class Stages {
 public:
  Stages(const Cluster& cluster, const Job& job, const Layout& layout, const estimate::StageLayouts& layouts, MayMove may_move)
      : cluster_(cluster), run_(layouts.run()), may_move_(may_move), is_part_(estimate::parts(run_)), costs_(layer_costs(cluster, keeping_all(job), layout)) {
    if (has_files(cluster, run_)) {
      moves_ = estimate::moves_of(layouts);
    }
    estimate::Run recomputed = run_;
    recomputed.activations = in_one_way(std::move(recomputed.activations), PartWay::recompute);
    shared_ = estimate::shared_inputs(recomputed);
  }

  const std::vector<bool>& is_part() const {
    return is_part_;
  }

  StageProblem of(int64_t stage) const {
    StageProblem out;
    activations::Problem& problem = out.problem;
    add_moves(cluster_, run_, may_move_, problem);
    problem.budget = run_.activations.memory_budget;
    problem.moving_copies = cluster_.on_host ? 2 : 1;
    for (const int64_t micro_batches : run_.in_flight[static_cast<size_t>(stage)]) {
      problem.in_flight = std::max(problem.in_flight, micro_batches);
    }
    if (!moves_.empty()) {
      problem.file_room = std::max<int64_t>(0, cluster_.disk.bytes / cluster_.ranks_per_host - moves_[static_cast<size_t>(stage)].file_bytes());
    }
    for (int64_t chunk = 0; chunk < run_.chunks; ++chunk) {
      const auto p = static_cast<size_t>(chunk * run_.stages + stage);
      for (int64_t i = run_.bounds[p]; i < run_.bounds[p + 1]; ++i) {
        add(i, out);
      }
    }
    problem.after_last = problem.in_flight == 1 ? problem.after_last : 0;
    return out;
  }

 private:
  void add(int64_t layer, StageProblem& out) const {
    const LayerCost& cost = costs_[static_cast<size_t>(layer)];
    const double backward = cost.backward() + cost.gradients;
    if (!is_part_[static_cast<size_t>(layer)]) {
      out.problem.after_last += out.layers.empty() ? 0 : cost.forward + backward;
      return;
    }
    out.problem.after_last = 0;
    out.layers.push_back(layer);
    const estimate::Layer& described = run_.model.layers[static_cast<size_t>(layer)];
    const int64_t share = estimate::kept_input(run_, shared_, layer);
    out.problem.parts.push_back({std::max<int64_t>(0, described.kept - described.input), described.input, share, cost.forward, backward, 0, 0});
    if (share < described.input) {
      const auto bytes = static_cast<double>(described.input);
      out.problem.gather = std::max(out.problem.gather, gather_seconds(cluster_, {run_.tensor_ranks, 1}, bytes) / bytes);
    }
  }

  const Cluster& cluster_;
  const estimate::Run& run_;
  MayMove may_move_;
  std::vector<bool> is_part_;
  std::vector<LayerCost> costs_;
  std::vector<estimate::StageMoves> moves_; // empty: nothing can go to files
  std::vector<int64_t> shared_;
};

} // namespace

ChosenWays choose_ways(const Cluster& cluster, const Job& job, const Layout& layout, const estimate::StageLayouts& layouts, Shared& shared, MayMove may_move) {
  const estimate::Run& run = layouts.run();
  const Stages stages(cluster, job, layout, layouts, may_move);
  if (std::ranges::count(stages.is_part(), true) == 0) {
    return {{}, concat("activation_checkpointing.layers \"", run.activations.layers, "\" matches no class of a part of the model")};
  }
  std::vector<PartWay> of_layers(run.model.layers.size(), PartWay::keep);
  for (int64_t stage = 0; stage < run.stages; ++stage) {
    const StageProblem one = stages.of(stage);
    const activations::Choice& choice = shared.choice(one.key(), one.problem);
    if (!choice.fits) {
      const std::string where = run.stages > 1 ? concat(" of stage ", stage) : "";
      return {{}, concat("no choice for the activations of the ", one.layers.size(), " parts", where, " fits memory_budget, ", format_bytes(static_cast<double>(one.problem.budget)), ": the least is ",
                         format_bytes(static_cast<double>(choice.bytes)), ", with ", join(activations::to_words(choice.ways), ", "))};
    }
    for (size_t i = 0; i < one.layers.size(); ++i) {
      of_layers[static_cast<size_t>(one.layers[i])] = choice.ways[i];
    }
  }
  ChosenWays out;
  const int64_t places = estimate::places_of_parts(run);
  for (int64_t i = 0; i < std::ssize(of_layers) && std::ssize(out.choices) < places; ++i) {
    if (run.layer_list || stages.is_part()[static_cast<size_t>(i)]) {
      out.choices.push_back(of_layers[static_cast<size_t>(i)]);
    }
  }
  return out;
}

bool may_move_activations(const Cluster& cluster, const estimate::Run& run) {
  return cluster.has_hosts_beside() || has_files(cluster, run);
}

activations::Options in_one_way(activations::Options options, PartWay way) {
  options.automatic = false;
  options.policy = way;
  return options;
}

Job with_choices(const Job& job, std::vector<PartWay> choices) {
  Job out = job;
  out.base.activations.automatic = false;
  out.base.activations.choices = std::move(choices);
  return out;
}

} // namespace trireme::plan
