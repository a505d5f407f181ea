#include <trireme/estimate/gather_plan.h>

#include <trireme/estimate/layouts.h>

#include <map>
#include <set>

namespace trireme::estimate {
namespace {

// The units that a step enters, one after the other.
std::vector<int64_t> visits(const Run& run) {
  const std::vector<int64_t> units = units_of(run);
  std::vector<int64_t> order;
  const auto enter = [&](int64_t unit) {
    if (unit != bucket::TensorInfo::kNoUnit && (order.empty() || order.back() != unit)) {
      order.push_back(unit);
    }
  };
  for (int64_t micro_batch = 0; micro_batch < run.accumulation; ++micro_batch) {
    for (const int64_t unit : units) {
      enter(unit);
    }
    for (auto layer = std::ssize(units) - 1; layer >= 0; --layer) {
      if (run.model.layers[layer].reads_parameters_in_backward) {
        enter(units[layer]);
      }
    }
  }
  return order;
}

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

} // namespace

int64_t gathered_elements(const Run& run, const bucket::FlatLayout& layout) {
  if (run.stages > 1) { // kept from the first micro-batch to the last
    return unit_elements(layout);
  }
  std::map<int64_t, int64_t> sizes;
  for (const bucket::Bucket& bucket : layout.buckets()) {
    sizes[bucket.unit] += bucket.numel();
  }
  const std::vector<int64_t> order = visits(run);
  std::set<int64_t> live;
  int64_t gathered = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    std::set<int64_t> kept = ahead(run, order, i, sizes);
    kept.insert(order[i]);
    for (const int64_t unit : kept) {
      gathered += live.count(unit) == 0 ? size_of(sizes, unit) : 0;
    }
    live = std::move(kept);
  }
  return gathered;
}

} // namespace trireme::estimate
