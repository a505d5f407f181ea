#include <trireme/store/membership.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <tuple>

namespace trireme::store {
namespace {

/// A spare joins within this time after the last decision, unless it is stopped.
constexpr std::chrono::milliseconds kSparesMoment{1000};
/// A member whose connection broke rejoins within this time, unless it is stopped.
constexpr std::chrono::milliseconds kMembersMoment{2000};

} // namespace

std::string Decision::text() const {
  return nlohmann::json{{"number", number}, {"members", members}, {"places", places},    {"fresh", fresh},
                        {"spares", spares}, {"changes", changes}, {"finished", finished}}
      .dump();
}

Decision Decision::parse(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {json.at("number"), json.at("members"), json.at("places"),  json.at("fresh"),
          json.at("spares"), json.at("changes"), json.at("finished")};
}

bool Decision::has_member(int64_t id) const {
  return std::find(members.begin(), members.end(), id) != members.end();
}

bool View::has_come(int64_t id, int64_t round) const {
  const auto found = living.find(id);
  return found != living.end() && found->second.come >= round;
}

std::set<int64_t> View::come(int64_t round) const {
  std::set<int64_t> all;
  for (const auto& [id, process] : living) {
    if (process.come >= round) {
      all.insert(id);
    }
  }
  return all;
}

std::set<int64_t> living_members(const Decision& last, const View& view) {
  std::set<int64_t> all;
  for (const auto& [id, process] : view.living) {
    if (last.has_member(id) || process.state == last.number) {
      all.insert(id);
    }
  }
  return all;
}

bool is_whole(const Decision& last, const View& view) {
  return std::all_of(last.members.begin(), last.members.end(), [&](int64_t id) { return view.living.contains(id); });
}

std::set<int64_t> holders(const Decision& last, const View& view) {
  std::set<int64_t> all = living_members(last, view);
  std::erase_if(all, [&](int64_t id) { return last.fresh.contains(id) && view.living.at(id).state != last.number; });
  return all;
}

bool may_propose(const Decision& last, const View& view, int64_t id) {
  const std::set<int64_t> members = living_members(last, view);
  if (members.empty()) {
    return true;
  }
  const std::set<int64_t> first = holders(last, view);
  return first.empty() ? members.contains(id) : first.contains(id);
}

bool complete(const Decision& last, const View& view, std::chrono::milliseconds waited, const Limits& limits) {
  const int64_t round = last.number + 1;
  const auto come = std::ssize(view.come(round));
  if (come < limits.min_ranks) {
    return false;
  }
  const std::set<int64_t> members = living_members(last, view);
  const bool all_known_are_there = come >= limits.max_ranks || waited >= limits.start_patience;
  if (members.empty()) { // no process trains: start again
    return all_known_are_there && (last.number == 0 || waited >= std::min(limits.start_patience, kMembersMoment));
  }
  const auto here = [&](int64_t id) { return view.has_come(id, round); };
  const bool all_here = std::all_of(members.begin(), members.end(), here);
  if (last.number == 0) { // other trained processes may not have found this store yet
    return all_here ? all_known_are_there : waited >= std::max(limits.start_patience, limits.late_patience);
  }
  if (!all_here) {
    return waited >= limits.late_patience;
  }
  const bool room = limits.max_ranks == 0 || std::ssize(members) < limits.max_ranks;
  const bool spares_here = std::all_of(last.spares.begin(), last.spares.end(),
                                       [&](int64_t id) { return here(id) || !view.living.contains(id); });
  return !room || spares_here || waited >= std::min(limits.late_patience, kSparesMoment);
}

Decision next_decision(const Decision& last, const View& view, const std::map<int64_t, Order>& orders, int max_ranks) {
  Decision next;
  next.number = last.number + 1;
  next.changes = view.changes;
  const std::set<int64_t> first = holders(last, view);
  std::vector<std::tuple<int, int64_t, int, int64_t>> line; // group, rank or first round, place, number
  bool any_holder = false;
  for (const auto& [id, order] : orders) {
    const auto rank = std::find(last.members.begin(), last.members.end(), id) - last.members.begin();
    if (first.contains(id) || rank < std::ssize(last.members)) {
      line.emplace_back(first.contains(id) ? 0 : 1, rank, order.place, id);
      any_holder = any_holder || first.contains(id);
    } else {
      line.emplace_back(2, order.first_round, order.place, id);
    }
  }
  std::sort(line.begin(), line.end());
  for (const auto& [group, rank, place, id] : line) {
    if (max_ranks != 0 && std::ssize(next.members) >= max_ranks) {
      next.spares.insert(id);
      continue;
    }
    next.members.push_back(id);
    next.places.push_back(place);
    if (any_holder && group != 0) {
      next.fresh.insert(id);
    }
  }
  return next;
}

} // namespace trireme::store
