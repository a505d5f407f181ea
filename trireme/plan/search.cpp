#include <trireme/plan/search.h>

#include <trireme/plan/conflict.h>

#include <trireme/base/error.h>
#include <trireme/plan/choose_ways.h>
#include <trireme/plan/estimate/moves.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace trireme::plan {
namespace {

using pipeline::ScheduleKind;

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= number; ++d) {
    if (number % d == 0) {
      out.push_back(d);
    }
  }
  return out;
}

struct Candidate {
  Layout layout;
  double least = 0;       ///< seconds
  int64_t block_kept = 0; ///< bytes that a block keeps of a micro-batch at least
};

using Axes = std::tuple<int64_t, int64_t, int64_t, int64_t>; ///< pipe, data, context, tensor

Axes axes_of(const Layout& layout) {
  return {layout.pipe, layout.data, layout.context, layout.tensor};
}

// Schedules and their chunks for a number of stages.
std::vector<std::pair<ScheduleKind, int64_t>> schedules(const Job& job, int64_t pipe) {
  std::vector<std::pair<ScheduleKind, int64_t>> out = {{ScheduleKind::one_f_one_b, 1}};
  if (pipe > 1) {
    out.emplace_back(ScheduleKind::zero_bubble, 1);
    for (int64_t chunks = 2; chunks <= 8 && pipe * chunks <= job.model.layers; ++chunks) {
      if (job.model.layers % (pipe * chunks) == 0 || chunks == 2) {
        out.emplace_back(ScheduleKind::interleaved, chunks);
      }
    }
  }
  return out;
}

// Variants of a layout that offload states and parameters. A single rank uses ZeRO's stages for this.
std::vector<Layout> with_moves(const Cluster& cluster, const Job& job, Layout layout) {
  using offload::Place;
  std::vector<Place> places = {Place::device};
  if (cluster.has_hosts_beside()) {
    places.push_back(Place::host);
  }
  if (cluster.disk.bytes > 0) {
    places.push_back(Place::nvme);
  }
  std::vector<Layout> out;
  for (const int zero_stage : layout.gradient_ranks() > 1 ? std::vector{layout.zero_stage} : std::vector{2, 3}) {
    layout.zero_stage = zero_stage;
    for (const Place states : places) {
      for (const Place parameters : places) {
        layout.states = states;
        layout.parameters = parameters;
        const bool as_stage_two = layout.gradient_ranks() == 1 && zero_stage == 3 && parameters == Place::device;
        if (!layout.moves_nothing() && !as_stage_two && !find_conflict(job, layout, !cluster.on_host)) {
          out.push_back(layout);
        }
      }
    }
  }
  return out;
}

struct Faster {
  bool operator()(const Prediction& a, const Prediction& b) const { return a.step_seconds < b.step_seconds; }
};

class Search {
 public:
  Search(const Cluster& cluster, const Job& job, const SearchOptions& options)
      : cluster_(cluster),
        job_(job),
        options_(options),
        shared_(job_),
        parameters_(estimate::transformer(job.model, {}).parameters()) {
    job_.base.model = {}; // each layout sets its own
    job_.base.explains = false;
    bound_ = job_;
    if (job_.base.activations.automatic &&
        !may_move_activations(cluster, job_.base)) { // otherwise recomputation needs least
      bound_.base.activations = in_one_way(bound_.base.activations, activations::Way::recompute);
    }
  }

  Plan run() {
    for (const int64_t tensor : divisors(cluster_.ranks())) {
      for (const int64_t context : divisors(cluster_.ranks() / tensor)) {
        for (const int64_t pipe : divisors(cluster_.ranks() / tensor / context)) {
          add_axes(
              {.pipe = pipe, .data = cluster_.ranks() / tensor / context / pipe, .context = context, .tensor = tensor});
        }
      }
    }
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.least < b.least; });
    plan_.candidates += std::ssize(candidates_);
    for (const Candidate& candidate : candidates_) {
      consider(candidate);
    }
    for (const Axes& axes : left_out_) {
      look_for_memory(axes);
    }
    while (!best_.empty()) {
      plan_.best.push_back(std::move(best_.extract(best_.begin()).value()));
    }
    for (auto& [axes, prediction] : refused_) {
      if (fitting_.count(axes) == 0) {
        plan_.refused.push_back(std::move(prediction));
      }
    }
    // Layouts that cannot be built come after those that only need more memory.
    std::stable_sort(plan_.refused.begin(), plan_.refused.end(), [](const Prediction& a, const Prediction& b) {
      return std::pair(a.memory_bytes == 0, a.memory_bytes) < std::pair(b.memory_bytes == 0, b.memory_bytes);
    });
    return std::move(plan_);
  }

 private:
  // Every layout with these numbers of ranks.
  void add_axes(Layout layout) {
    std::vector<int64_t> micro_batches;
    for (int64_t micro = 1; micro <= std::min(job_.batch / layout.data, options_.most_micro_batch); ++micro) {
      if (job_.batch / layout.data % micro == 0) {
        micro_batches.push_back(micro);
      }
    }
    layout.micro_batch = micro_batches.empty() ? 1 : micro_batches.back(); // fewest forwards
    if (const std::string why = why_impossible(job_, layout); !why.empty()) {
      ++plan_.candidates;
      layout.micro_batch = 1;
      refused_[axes_of(layout)] = {layout, why};
      return;
    }
    for (const int64_t micro : micro_batches) {
      layout.micro_batch = micro;
      for (const bool sequence_parallel : {false, true}) {
        layout.sequence_parallel = sequence_parallel;
        if (sequence_parallel && layout.tensor == 1) {
          continue;
        }
        for (const int64_t recompute : recompute_intervals(job_, layout.pipe)) {
          layout.recompute = recompute;
          add_schedules(layout);
        }
      }
    }
  }

  void add_schedules(Layout layout) {
    if (!why_impossible(job_, layout).empty()) {
      return;
    }
    const int64_t kept = least_of_a_block(bound_, layout, !cluster_.on_host);
    const std::vector<LayerCost> costs = layer_costs(cluster_, job_, layout);
    for (const auto& [kind, chunks] : schedules(job_, layout.pipe)) {
      layout.schedule = kind;
      layout.chunks = chunks;
      if (!why_impossible(job_, layout).empty()) { // chunks add forwards
        continue;
      }
      const double least = least_seconds(cluster_, job_, layout, costs, shared_);
      for (const int zero_stage : {0, 1, 2, 3}) {
        layout.zero_stage = zero_stage;
        if (zero_stage == 0 || layout.gradient_ranks() > 1) {
          candidates_.push_back({layout, least, kept});
        }
      }
    }
  }

  void consider(const Candidate& candidate) {
    if (!fits(candidate)) {
      for (const Layout& moved : with_moves(cluster_, job_, candidate.layout)) {
        ++plan_.candidates;
        fits({moved, candidate.least, candidate.block_kept});
      }
    }
  }

  // Adds a layout to the plan if it is among the best. False: it needs too much memory.
  bool fits(const Candidate& candidate) {
    const Axes axes = axes_of(candidate.layout);
    const bool too_slow = std::ssize(best_) == options_.best && candidate.least >= best_.rbegin()->step_seconds;
    if (too_slow) {
      left_out_.insert(axes);
      return true;
    }
    if (least_memory(job_, candidate.layout, parameters_, candidate.block_kept, !cluster_.on_host) +
            cluster_.reserved_bytes >
        cluster_.memory_bytes) {
      left_out_.insert(axes);
      return false;
    }
    Prediction prediction = predict(cluster_, job_, candidate.layout, shared_);
    ++plan_.estimated;
    if (!prediction.refused.empty()) {
      note(std::move(prediction));
      return false;
    }
    ++plan_.simulated;
    fitting_.insert(axes);
    best_.insert(std::move(prediction));
    if (std::ssize(best_) > options_.best) {
      best_.erase(std::prev(best_.end()));
    }
    return true;
  }

  // Checks whether any layout of this division fits, by the one that needs least memory.
  void look_for_memory(const Axes& axes) {
    if (fitting_.count(axes) > 0) {
      return;
    }
    Layout layout{.pipe = std::get<0>(axes),
                  .data = std::get<1>(axes),
                  .context = std::get<2>(axes),
                  .tensor = std::get<3>(axes)};
    layout.sequence_parallel = layout.tensor > 1;
    layout.sequence_parallel = layout.sequence_parallel && why_impossible(job_, layout).empty();
    std::vector<Layout> smallest;
    const activations::Options& activations = job_.base.activations;
    std::vector<int64_t> intervals = recompute_intervals(job_, layout.pipe);
    if (activations.choices.empty()) { // otherwise the list is for one of them
      intervals = {intervals.back()};
    }
    for (const int64_t recompute : intervals) {
      layout.recompute = recompute;
      for (const int zero_stage : {2, 3}) { // in a pipeline stage 3 gathers a whole stage's parameters
        layout.zero_stage = layout.gradient_ranks() > 1 ? zero_stage : 0;
        smallest.push_back(layout);
        const std::vector<Layout> moved = with_moves(cluster_, job_, layout);
        smallest.insert(smallest.end(), moved.begin(), moved.end());
      }
    }
    for (const Layout& one : smallest) {
      ++plan_.estimated;
      // The choice of "auto" may not fit although everything that it may keep does.
      Prediction prediction =
          activations.automatic ? predict(cluster_, job_, one, shared_) : memory_only(cluster_, job_, one, shared_);
      if (prediction.refused.empty()) {
        fitting_.insert(axes);
        return;
      }
      note(std::move(prediction));
    }
  }

  // Keeps the layout that needs least memory for every division of the ranks.
  void note(Prediction prediction) {
    const Axes axes = axes_of(prediction.layout);
    const auto found = refused_.find(axes);
    if (found == refused_.end() || prediction.memory_bytes < found->second.memory_bytes) {
      refused_[axes] = std::move(prediction);
    }
  }

  const Cluster& cluster_;
  Job job_;
  Job bound_; // for lower bounds of memory
  const SearchOptions& options_;
  Shared shared_;
  int64_t parameters_;
  std::vector<Candidate> candidates_;
  std::multiset<Prediction, Faster> best_; // among equally fast ones, the first comes first
  std::map<Axes, Prediction> refused_;
  std::set<Axes> fitting_;
  std::set<Axes> left_out_; // with layouts whose memory was not computed
  Plan plan_;
};

} // namespace

Plan search(const Cluster& cluster, const Job& job, const SearchOptions& options) {
  return Search(cluster, job, options).run();
}

} // namespace trireme::plan
