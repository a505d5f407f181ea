#include <trireme/plan/estimate/gather_plan.h>

#include <trireme/plan/estimate/layouts.h>
#include <trireme/shards/zero/gather_rule.h>

#include <algorithm>
#include <numeric>

namespace trireme::estimate {
namespace {

using pipeline::Op;

// Units that consecutive computations enter, `repeats` times over.
struct Phase {
  std::vector<int64_t> visits;
  int64_t repeats = 1;
};

// Lists the units that a stage enters.
class Visits {
 public:
  Visits(const Run& run, int64_t stage, const std::vector<const bucket::FlatLayout*>& layouts)
      : run_(run),
        stage_(stage),
        first_trained_(run.model.first_trained()),
        units_(units_of(run, stage, layouts)),
        chunks_(layers_of(run, stage)) {}

  std::vector<Phase> of(const std::vector<Run::Phase>& program) {
    std::vector<Phase> phases;
    for (const Run::Phase& phase : program) {
      visits_.clear();
      for (const Run::Computation& computation : phase.computations) {
        add(computation);
      }
      if (!visits_.empty()) {
        phases.push_back({visits_, phase.repeats});
      }
    }
    return phases;
  }

 private:
  void add(const Run::Computation& computation) {
    const std::vector<int64_t>& layers = chunks_.at(computation.chunk);
    if (computation.op == Op::forward) {
      forward(layers);
    } else if (computation.op != Op::backward_weight) {
      backward(layers);
    } else if (run_.computes_weights_later(stage_)) {
      std::for_each(layers.rbegin(), layers.rend(), [&](int64_t layer) { enter(layer); });
    }
  }
  void enter(int64_t layer) {
    if (units_[layer] != bucket::TensorInfo::kNoUnit) {
      visits_.push_back(units_[layer]);
    }
  }
  void forward(const std::vector<int64_t>& layers) {
    std::for_each(layers.begin(), layers.end(), [&](int64_t layer) { enter(layer); });
  }
  // Each recomputed group of layers runs forward again. Layers before the first trained one have no backward.
  void backward(const std::vector<int64_t>& layers) {
    const int64_t count = std::ssize(layers);
    const int64_t interval = run_.recompute_interval > 0 ? run_.recompute_interval : std::max<int64_t>(1, count);
    for (int64_t group = (count - 1) / interval; group >= 0 && count > 0; --group) {
      const int64_t begin = group * interval;
      const int64_t end = std::min(begin + interval, count);
      const bool again = run_.recompute_interval > 0 && layers[end - 1] >= first_trained_;
      for (int64_t i = begin; again && i < end; ++i) {
        enter(layers[i]);
      }
      for (int64_t i = end - 1; i >= begin && layers[i] >= first_trained_; --i) {
        if (run_.model.layers[layers[i]].reads_parameters_in_backward) {
          enter(layers[i]);
        }
      }
    }
  }

  const Run& run_;
  int64_t stage_;
  int64_t first_trained_;
  std::vector<int64_t> units_; // by layer
  std::vector<std::vector<int64_t>> chunks_;
  std::vector<int64_t> visits_;
};

// Enters units one after the other by the rule of zero::ParameterCoordinator; each unit is a single part.
class Walk {
 public:
  Walk(const zero::GatherRule& rule, const std::vector<Phase>& phases)
      : rule_(rule), phases_(phases), live_(rule.sizes.size()) {
    plan_.times.assign(rule.sizes.size(), 0);
  }

  GatherPlan run() {
    for (size_t phase = 0; phase < phases_.size(); ++phase) {
      const auto& [visits, repeats] = phases_[phase];
      for (int64_t repeat = 0; repeat < repeats; ++repeat) {
        const zero::PartSet before = live_;
        const std::vector<int64_t> times = plan_.times;
        const bool again = repeat + 1 < repeats;
        for (size_t i = 0; i < visits.size(); ++i) {
          visit(phase, i, again);
        }
        if (again && live_ == before) { // a cycle; only the last repetition, which other visits follow, differs
          for (size_t unit = 0; unit < times.size(); ++unit) {
            plan_.times[unit] += (repeats - 2 - repeat) * (plan_.times[unit] - times[unit]);
          }
          repeat = repeats - 2;
        }
      }
    }
    return std::move(plan_);
  }

 private:
  // Calls look(unit) for the visits after visit i until it returns false. Repetitions count once, because a unit seen
  // before decides nothing again.
  template <typename Look>
  void look_ahead(size_t phase, size_t i, bool again, const Look& look) const {
    const std::vector<int64_t>& here = phases_[phase].visits;
    for (size_t next = i + 1; next < here.size(); ++next) {
      if (!look(std::span(&here[next], 1))) {
        return;
      }
    }
    for (size_t next = again ? phase : phase + 1; next < phases_.size(); ++next) {
      for (const int64_t& unit : phases_[next].visits) {
        if (!look(std::span(&unit, 1))) {
          return;
        }
      }
    }
  }

  void visit(size_t phase, size_t i, bool again) {
    zero::PartSet whole = rule_.whole_parts(std::span(&phases_[phase].visits[i], 1), live_,
                                            [&](const auto& look) { look_ahead(phase, i, again, look); });
    for (const int64_t unit : whole.parts()) {
      plan_.times[unit] += live_.has(unit) ? 0 : 1;
    }
    plan_.most_live = std::max(plan_.most_live, rule_.elements_of(whole.parts()));
    live_ = std::move(whole);
  }

  const zero::GatherRule& rule_;
  const std::vector<Phase>& phases_;
  zero::PartSet live_;
  GatherPlan plan_;
};

} // namespace

int64_t GatherPlan::elements(const bucket::FlatLayout& layout) const {
  int64_t sum = 0;
  for (const bucket::Bucket& bucket : layout.buckets()) {
    sum += bucket.unit == bucket::TensorInfo::kNoUnit ? 0 : times[bucket.unit] * bucket.numel();
  }
  return sum;
}

GatherPlan gather_plan(const Run& run, int64_t stage, const bucket::FlatLayout& trained,
                       const bucket::FlatLayout& frozen) {
  zero::GatherRule rule{.sizes = std::vector<int64_t>(run.model.layers.size(), 0), .ahead = run.zero.prefetch_elements};
  for (const bucket::FlatLayout* const layout : {&trained, &frozen}) {
    for (const bucket::TensorInfo& tensor : layout->tensors()) { // without the gaps of flat buffers
      if (tensor.unit != bucket::TensorInfo::kNoUnit) {
        rule.sizes[tensor.unit] += tensor.numel();
      }
    }
  }
  const int64_t of_units = std::accumulate(rule.sizes.begin(), rule.sizes.end(), int64_t{0});
  rule.keep = run.zero.live_elements(of_units, run.stages);
  Visits visits(run, stage, {&trained, &frozen});
  const auto of = [&](const std::vector<Run::Phase>& program) { return Walk(rule, visits.of(program)).run(); };
  if (run.programs.empty()) {
    const Run::Phase micro_batches{{{Op::forward, 0}, {Op::backward, 0}}, run.accumulation};
    return of({micro_batches});
  }
  GatherPlan plan = of(run.programs.back().stages.at(stage));
  if (run.programs.size() > 1) {
    const GatherPlan fewer = of(run.programs.front().stages.at(stage));
    const int64_t between = run.programs.back().micro_batches - run.programs.front().micro_batches;
    for (size_t unit = 0; unit < plan.times.size(); ++unit) {
      plan.times[unit] +=
          (run.accumulation - run.programs.back().micro_batches) / between * (plan.times[unit] - fewer.times[unit]);
    }
  }
  return plan;
}

} // namespace trireme::estimate
