#include <trireme/estimate/gather_plan.h>

#include <trireme/estimate/layouts.h>

#include <algorithm>
#include <map>
#include <set>

namespace trireme::estimate {
namespace {

using Kind = Run::Computation::Kind;

// Writes down the units that a step enters, one after the other.
class Visits {
 public:
  // `micro_batches`: of a run without programs.
  Visits(const Run& run, int64_t stage, const bucket::FlatLayout& layout, int64_t micro_batches)
      : run_(run), units_(units_of(run, stage, layout)), chunks_(layers_of(run, stage)) {
    if (run.programs.empty()) {
      for (int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
        forward(chunks_.front());
        backward(chunks_.front());
      }
      return;
    }
    for (const Run::Computation& computation : run.programs.at(stage)) {
      last_ = bucket::TensorInfo::kNoUnit; // a computation notes its first unit in any case
      const std::vector<int64_t>& layers = chunks_.at(computation.chunk);
      const bool first = stage == 0 && computation.chunk == 0; // its inputs need no gradient: backward is not split
      if (computation.kind == Kind::forward) {
        forward(layers);
      } else if (computation.kind != Kind::backward_weight) {
        backward(layers);
      } else if (!first && run.recompute_interval == 0) {
        weights(layers);
      }
    }
  }

  const std::vector<int64_t>& order() const {
    return order_;
  }

 private:
  void enter(int64_t layer) {
    const int64_t unit = units_[layer];
    if (unit != bucket::TensorInfo::kNoUnit && last_ != unit) {
      order_.push_back(unit);
      last_ = unit;
    }
  }
  void forward(const std::vector<int64_t>& layers) {
    std::for_each(layers.begin(), layers.end(), [&](int64_t layer) { enter(layer); });
  }
  // Each group of layers that is recomputed runs forward once more.
  void backward(const std::vector<int64_t>& layers) {
    const int64_t count = std::ssize(layers);
    const int64_t interval = run_.recompute_interval > 0 ? run_.recompute_interval : std::max<int64_t>(1, count);
    for (int64_t group = (count - 1) / interval; group >= 0 && count > 0; --group) {
      const int64_t begin = group * interval;
      const int64_t end = std::min(begin + interval, count);
      for (int64_t i = begin; run_.recompute_interval > 0 && i < end; ++i) {
        enter(layers[i]);
      }
      for (int64_t i = end - 1; i >= begin; --i) {
        if (run_.model.layers[layers[i]].reads_parameters_in_backward) {
          enter(layers[i]);
        }
      }
    }
  }
  void weights(const std::vector<int64_t>& layers) {
    std::for_each(layers.rbegin(), layers.rend(), [&](int64_t layer) { enter(layer); });
  }

  const Run& run_;
  std::vector<int64_t> units_; // by layer
  std::vector<std::vector<int64_t>> chunks_;
  std::vector<int64_t> order_;
  int64_t last_ = bucket::TensorInfo::kNoUnit;
};

// Elements of a unit in this layout, which may have a part of the parameters only.
int64_t size_of(const std::map<int64_t, int64_t>& sizes, int64_t unit) {
  const auto found = sizes.find(unit);
  return found == sizes.end() ? 0 : found->second;
}

// What is gathered ahead while visit `now` is under way.
std::set<int64_t> ahead(const Run& run, const std::vector<int64_t>& order, size_t now, const std::map<int64_t, int64_t>& sizes) {
  std::set<int64_t> next;
  int64_t elements = 0;
  for (size_t i = now + 1; i < order.size(); ++i) {
    const bool fresh = order[i] != order[now] && next.count(order[i]) == 0;
    elements += fresh ? size_of(sizes, order[i]) : 0;
    if (run.prefetch_elements && elements > *run.prefetch_elements) {
      break;
    }
    next.insert(order[i]);
    if (!run.prefetch_elements && fresh) {
      break;
    }
  }
  next.erase(order[now]);
  return next;
}

struct Plan {
  int64_t gathered = 0;
  int64_t most_live = 0;
};

// `counted`: the elements of each unit that are asked about. What is kept follows from `sizes`, those of all its parameters.
Plan walk(const Run& run, const std::vector<int64_t>& order, const std::map<int64_t, int64_t>& sizes, const std::map<int64_t, int64_t>& counted, int64_t most_kept) {
  std::set<int64_t> live;
  Plan plan;
  for (size_t i = 0; i < order.size(); ++i) {
    std::set<int64_t> kept = ahead(run, order, i, sizes);
    kept.insert(order[i]);
    int64_t elements = 0;
    for (const int64_t unit : kept) {
      plan.gathered += live.count(unit) == 0 ? size_of(counted, unit) : 0;
      elements += size_of(sizes, unit);
    }
    int64_t whole = elements;
    auto open = std::count_if(live.begin(), live.end(), [&](int64_t unit) { return kept.count(unit) == 0; });
    for (size_t next = i + 1; next < order.size() && open > 0; ++next) {
      if (live.count(order[next]) == 0 || kept.count(order[next]) != 0) {
        continue;
      }
      elements += size_of(sizes, order[next]);
      if (elements > most_kept) {
        break;
      }
      whole = elements;
      kept.insert(order[next]);
      --open;
    }
    plan.most_live = std::max(plan.most_live, whole);
    live = std::move(kept);
  }
  return plan;
}

// With the gaps between parameters, which are gathered too.
std::map<int64_t, int64_t> gathered_sizes_of(const bucket::FlatLayout& layout) {
  std::map<int64_t, int64_t> sizes;
  for (const bucket::Bucket& bucket : layout.buckets()) {
    sizes[bucket.unit] += bucket.numel();
  }
  return sizes;
}

Plan plan_of(const Run& run, int64_t stage, const std::map<int64_t, int64_t>& counted) {
  const bucket::FlatLayout layout = layout_of(run, stage);
  std::map<int64_t, int64_t> sizes;
  int64_t all = 0;
  for (const bucket::TensorInfo& tensor : layout.tensors()) {
    sizes[tensor.unit] += tensor.numel();
    all += tensor.unit == bucket::TensorInfo::kNoUnit ? 0 : tensor.numel();
  }
  const int64_t most_kept = run.live_elements(all);
  const auto of = [&](int64_t micro_batches) { return walk(run, Visits(run, stage, layout, micro_batches).order(), sizes, counted, most_kept); };
  // A visit looks no farther than the units go round, so from the third on micro-batches are alike but for the last ones.
  constexpr int64_t kFew = 5;
  if (!run.programs.empty() || run.accumulation <= kFew) {
    return of(run.accumulation);
  }
  Plan plan = of(kFew);
  plan.gathered += (run.accumulation - kFew) * (plan.gathered - of(kFew - 1).gathered);
  return plan;
}

} // namespace

int64_t gathered_elements(const Run& run, int64_t stage, const bucket::FlatLayout& layout) {
  return plan_of(run, stage, gathered_sizes_of(layout)).gathered;
}

int64_t live_elements(const Run& run, int64_t stage) {
  return plan_of(run, stage, {}).most_live;
}

} // namespace trireme::estimate
