#include <trireme/monitor/straggler.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

namespace trireme::monitor {
namespace {

constexpr double kLastShare = 0.8;
constexpr double kSlowdown = 1.3;
constexpr double kSecondsLost = 1e-3;

using Get = std::function<double(const StepShare&)>;

double busy(const StepShare& share) {
  return share.total - share.wait;
}

double median(const std::vector<StepShare>& steps, const Get& get) {
  std::vector<double> values;
  for (const StepShare& step : steps) {
    values.push_back(get(step));
  }
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

std::string number(double value, int decimals) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

} // namespace

std::optional<Straggler> find_straggler(const std::vector<std::vector<StepShare>>& by_rank) {
  size_t steps = by_rank.empty() ? 0 : by_rank.front().size();
  for (const auto& rank : by_rank) {
    steps = std::min(steps, rank.size());
  }
  if (by_rank.size() < 2 || steps == 0) {
    return std::nullopt;
  }
  std::vector<int> times_last(by_rank.size(), 0);
  for (size_t step = 0; step < steps; ++step) {
    const auto sooner = [&](const auto& a, const auto& b) { return busy(a[step]) < busy(b[step]); };
    const auto last = std::max_element(by_rank.begin(), by_rank.end(), sooner);
    ++times_last[static_cast<size_t>(last - by_rank.begin())];
  }
  const auto suspect = static_cast<size_t>(std::max_element(times_last.begin(), times_last.end()) - times_last.begin());
  size_t fastest = suspect == 0 ? 1 : 0;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (rank != suspect && median(by_rank[rank], busy) < median(by_rank[fastest], busy)) {
      fastest = rank;
    }
  }
  Straggler found;
  found.rank = static_cast<int>(suspect);
  found.steps = static_cast<int>(steps);
  found.last_share = static_cast<double>(times_last[suspect]) / static_cast<double>(steps);
  const double own = median(by_rank[suspect], busy);
  const double best = median(by_rank[fastest], busy);
  found.slowdown = own / std::max(best, 1e-9);
  if (found.last_share < kLastShare || found.slowdown < kSlowdown || own - best < kSecondsLost) {
    return std::nullopt;
  }
  const std::pair<const char*, Get> phases[] = {
      {"data", [](const StepShare& share) { return share.data; }},
      {"forward", [](const StepShare& share) { return share.forward; }},
      {"backward", [](const StepShare& share) { return share.backward; }},
      {"optimizer", [](const StepShare& share) { return share.optimizer; }},
      {"elsewhere",
       [](const StepShare& s) { return std::max(0.0, busy(s) - s.data - s.forward - s.backward - s.optimizer); }},
  };
  double most = -1;
  for (const auto& [name, get] : phases) {
    const double theirs = median(by_rank[fastest], get);
    const double mine = median(by_rank[suspect], get);
    if (mine - theirs > most) {
      most = mine - theirs;
      found.phase = name;
      found.speed = theirs / std::max(mine, 1e-9);
    }
  }
  return found;
}

std::string describe(const Straggler& straggler, int world_rank) {
  return concat("rank ", world_rank, " arrives last in ", std::lround(straggler.last_share * 100), " % of the last ",
                straggler.steps, " steps: ", number(straggler.speed, 2), "x of the fastest in ", straggler.phase, ", ",
                number(straggler.slowdown, 1), " times its time for a step");
}

} // namespace trireme::monitor
