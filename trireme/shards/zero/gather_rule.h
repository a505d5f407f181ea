#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace trireme::zero {

/// Parts of units by their numbers, in the order in which they were added. Cost of has() and insert(): constant.
class PartSet {
 public:
  explicit PartSet(size_t count) : has_(count, 0) {}

  bool has(int64_t part) const { return has_[static_cast<size_t>(part)] != 0; }
  /// False: it was there.
  bool insert(int64_t part) {
    if (has(part)) {
      return false;
    }
    has_[static_cast<size_t>(part)] = 1;
    parts_.push_back(part);
    return true;
  }
  const std::vector<int64_t>& parts() const { return parts_; }
  /// Whatever their order.
  bool operator==(const PartSet& other) const { return has_ == other.has_; }

 private:
  std::vector<char> has_;
  std::vector<int64_t> parts_;
};

/// Decides which parts of units are whole while a unit is used (ZeRO stage 3): ParameterCoordinator asks when it enters
/// one, and the estimate for every unit of a step.
struct GatherRule {
  /// Elements of each part.
  std::vector<int64_t> sizes = {};
  /// Elements that may be gathered ahead; absent: the next unit, whatever its size; 0: nothing.
  std::optional<int64_t> ahead = std::nullopt;
  /// Elements that may be whole at a time with those of units that are used again later in the pass.
  int64_t keep = 0;

  int64_t elements_of(std::span<const int64_t> parts) const {
    int64_t sum = 0;
    for (const int64_t part : parts) {
      sum += sizes[static_cast<size_t>(part)];
    }
    return sum;
  }

  /// The parts in use, then those to be gathered ahead, then those that are there and stay because they come again:
  /// whole units only, those that come first, until the next one has no room. `live`: what is whole now.
  /// `for_each_upcoming(look)` calls look(parts of the unit) for the units that come next, as far as they are known,
  /// until it returns false.
  template <typename ForEachUpcoming>
  PartSet whole_parts(std::span<const int64_t> in_use, const PartSet& live,
                      const ForEachUpcoming& for_each_upcoming) const {
    PartSet whole(sizes.size());
    std::for_each(in_use.begin(), in_use.end(), [&](int64_t part) { whole.insert(part); });
    add_expected(whole, for_each_upcoming);
    add_kept(whole, live, for_each_upcoming);
    return whole;
  }

 private:
  template <typename ForEachUpcoming>
  void add_expected(PartSet& whole, const ForEachUpcoming& for_each_upcoming) const {
    int64_t elements = 0;
    for_each_upcoming([&](std::span<const int64_t> unit) {
      const auto is_new = [&](int64_t part) { return !whole.has(part); };
      for (const int64_t part : unit) {
        elements += is_new(part) ? sizes[static_cast<size_t>(part)] : 0;
      }
      if (ahead && elements > *ahead) {
        return false;
      }
      bool any = false;
      for (const int64_t part : unit) {
        any = whole.insert(part) || any;
      }
      return ahead.has_value() || !any;
    });
  }

  template <typename ForEachUpcoming>
  void add_kept(PartSet& whole, const PartSet& live, const ForEachUpcoming& for_each_upcoming) const {
    const auto may_stay = [&](int64_t part) { return live.has(part) && !whole.has(part); };
    auto open = std::count_if(live.parts().begin(), live.parts().end(), may_stay);
    int64_t elements = elements_of(whole.parts());
    if (elements >= keep || open == 0) {
      return;
    }
    for_each_upcoming([&](std::span<const int64_t> unit) {
      for (const int64_t part : unit) {
        elements += may_stay(part) ? sizes[static_cast<size_t>(part)] : 0;
      }
      if (elements > keep) {
        return false;
      }
      for (const int64_t part : unit) {
        open -= may_stay(part) && whole.insert(part) ? 1 : 0;
      }
      return open > 0;
    });
  }
};

} // namespace trireme::zero
