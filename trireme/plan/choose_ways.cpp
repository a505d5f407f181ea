#include <trireme/plan/choose_ways.h>

#include <trireme/memory/activations/choice.h>
#include <trireme/plan/estimate/activation_choice.h>
#include <trireme/plan/estimate/activations.h>
#include <trireme/plan/estimate/layouts.h>
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

// Sets what ranks would measure of moves.
void add_moves(const Cluster& cluster, const estimate::Run& run, MayMove may_move, activations::Problem& problem) {
  const auto of = [&](PartWay way) {
    constexpr int64_t kBytes = int64_t{1} << 30;
    const ActivationTimes times = activation_times(cluster, kBytes, way);
    const auto each = [&](double over_link, double files) {
      return std::max(over_link, files) / static_cast<double>(kBytes);
    };
    return activations::MoveCost{each(times.leave_over_link, times.leave_to_files),
                                 each(times.back_over_link, times.back_from_files),
                                 times.copied / static_cast<double>(kBytes)};
  };
  problem.host = of(PartWay::host);
  problem.nvme = of(PartWay::nvme);
  problem.allowed = activations::ways_that_move(may_move == MayMove::to_hosts_and_files && cluster.has_hosts_beside(),
                                                may_move != MayMove::nowhere && has_files(cluster, run));
}

// Bytes left to a rank for activations, in files or in its host's memory.
int64_t room(int64_t of_host, const Cluster& cluster, int64_t taken, double usable) {
  return static_cast<int64_t>(usable *
                              static_cast<double>(std::max<int64_t>(0, of_host / cluster.ranks_per_host - taken)));
}

// Stages with equal keys have equal problems. Speeds and the budget are the same for all.
std::vector<double> key_of(const activations::Problem& problem) {
  std::vector<double> out = {static_cast<double>(problem.allowed.size()),
                             problem.after_last,
                             problem.gather,
                             static_cast<double>(problem.file_room),
                             static_cast<double>(problem.host_room),
                             static_cast<double>(problem.in_flight),
                             static_cast<double>(problem.put_off)};
  for (const PartCost& part : problem.parts) {
    out.insert(out.end(), {static_cast<double>(part.bytes), static_cast<double>(part.input_bytes),
                           static_cast<double>(part.share_bytes), part.forward, part.backward});
  }
  return out;
}

class Stages {
 public:
  Stages(const Cluster& cluster, const Job& job, const Layout& layout, const Needs& needs, MayMove may_move)
      : cluster_(cluster),
        run_(needs.layouts.run()),
        needs_(needs),
        may_move_(may_move),
        problems_(estimate::stage_problems(run_)),
        costs_(layer_costs(cluster, keeping_all(job), layout)) {}

  estimate::StageProblem of(int64_t stage) const {
    estimate::StageProblem out = problems_[static_cast<size_t>(stage)];
    activations::Problem& problem = out.problem;
    add_moves(cluster_, run_, may_move_, problem);
    add_room(stage, problem);
    for (size_t i = 0; i < out.layers.size(); ++i) {
      const LayerCost& cost = costs_[static_cast<size_t>(out.layers[i])];
      PartCost& part = problem.parts[i];
      part.forward = cost.forward;
      part.backward = cost.backward() + cost.gradients;
      if (part.share_bytes < part.input_bytes) {
        const auto bytes = static_cast<double>(part.input_bytes);
        problem.gather = std::max(problem.gather, gather_seconds(cluster_, {run_.tensor_ranks, 1}, bytes) / bytes);
      }
    }
    problem.after_last = problem.in_flight == 1 && !out.layers.empty() ? behind(stage, out.layers.back()) : 0;
    return out;
  }

 private:
  // Limits free space to what could be used, so that layouts with plenty of it have equal problems.
  void add_room(int64_t stage, activations::Problem& problem) const {
    if (needs_.moves.empty()) {
      return;
    }
    int64_t most = 0;
    for (const PartCost& part : problem.parts) {
      most += problem.in_flight * (part.bytes + part.input_bytes);
    }
    const estimate::StageMoves& moves = needs_.moves[static_cast<size_t>(stage)];
    const int64_t on_host =
        moves.host_bytes() - moves.activations_on_host() + needs_.memory[static_cast<size_t>(stage)].always_on_host();
    problem.file_room =
        std::min(most, room(cluster_.disk.bytes, cluster_, moves.file_bytes(), activations::kUsableOfDisk));
    problem.host_room = std::min(most, room(cluster_.host.memory_bytes - cluster_.host.reserved_bytes, cluster_,
                                            on_host, activations::kUsableOfHost));
  }

  // Seconds of the layers after the last part.
  double behind(int64_t stage, int64_t last_part) const {
    double seconds = 0;
    for (const std::vector<int64_t>& layers : estimate::layers_of(run_, stage)) {
      for (const int64_t layer : layers) {
        const LayerCost& cost = costs_[static_cast<size_t>(layer)];
        seconds += layer > last_part ? cost.forward + cost.backward() + cost.gradients : 0;
      }
    }
    return seconds;
  }

  const Cluster& cluster_;
  const estimate::Run& run_;
  const Needs& needs_;
  MayMove may_move_;
  std::vector<estimate::StageProblem> problems_;
  std::vector<LayerCost> costs_;
};

} // namespace

ChosenWays choose_ways(const Cluster& cluster, const Job& job, const Layout& layout, const Needs& needs, Shared& shared,
                       MayMove may_move) {
  const estimate::Run& run = needs.layouts.run();
  const Stages stages(cluster, job, layout, needs, may_move);
  std::vector<PartWay> of_layers(run.model.layers.size(), PartWay::keep);
  for (int64_t stage = 0; stage < run.stages; ++stage) {
    const estimate::StageProblem one = stages.of(stage);
    const activations::Choice& choice = shared.choice(key_of(one.problem), one.problem);
    if (!choice.fits) {
      return {{}, estimate::why_no_choice(run, stage, one.problem, choice).what};
    }
    for (size_t i = 0; i < one.layers.size(); ++i) {
      of_layers[static_cast<size_t>(one.layers[i])] = choice.ways[i];
    }
  }
  ChosenWays out;
  const std::vector<bool> is_part = estimate::parts(run);
  const int64_t places = estimate::places_of_parts(run);
  for (int64_t i = 0; i < std::ssize(of_layers) && std::ssize(out.choices) < places; ++i) {
    if (run.layer_list || is_part[static_cast<size_t>(i)]) {
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
