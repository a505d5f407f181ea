#include <trireme/memory/activations/choice.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/memory/aio/options.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>

namespace trireme::activations {
namespace {

constexpr size_t kMostStates = 4096;
constexpr int64_t kGrid = 1024;

int64_t whole(const PartCost& part) {
  return part.bytes + part.input_bytes;
}

// Bytes of the buffer for a part's inputs.
int64_t moved_input(const PartCost& part) {
  return aio::round_up(part.share_bytes);
}

// Bytes of a part that are moved.
int64_t moved_by(const PartCost& part, Way way) {
  return recomputes(way) ? moved_input(part) : whole(part) + part.padding - part.stay_bytes;
}

int64_t filed_by(const PartCost& part, Way way) {
  return to_nvme(way) ? moved_by(part, way) : 0;
}

int64_t hosted_by(const PartCost& part, Way way) {
  return to_host(way) ? moved_by(part, way) : 0;
}

bool several_in_flight(const Problem& problem) {
  return problem.in_flight > 1 || problem.put_off > 0;
}

// Over all micro-batches in flight.
int64_t held_by(const Problem& problem, const PartCost& part, Way way) {
  const int64_t stays = way == Way::keep        ? whole(part)
                        : way == Way::recompute ? part.share_bytes
                        : recomputes(way)       ? 0
                                                : part.stay_bytes;
  return problem.in_flight * stays + (moves(way) ? problem.put_off * moved_by(part, way) : 0);
}

bool gathers(const PartCost& part) {
  return part.share_bytes < part.input_bytes;
}

// The peak bytes of the part itself, besides its moves: on the CPU, what has moved lies in the buffers of moves.
int64_t all_of(const Problem& problem, const PartCost& part, Way way) {
  if (moves(way) && !recomputes(way) && problem.moving_copies > 1) {
    return part.stay_bytes;
  }
  return whole(part) + (way == Way::recompute && gathers(part) ? part.share_bytes : 0);
}

// Seconds of the part itself, and of its move during the next part; the last part has no next.
double seconds_of(const Problem& problem, size_t index, Way way, const PartCost* next, Way next_way) {
  const PartCost& part = problem.parts[index];
  double seconds =
      recomputes(way) ? part.forward + (gathers(part) ? problem.gather * static_cast<double>(part.input_bytes) : 0) : 0;
  if (!moves(way)) {
    return seconds;
  }
  const MoveCost& move = to_nvme(way) ? problem.nvme : problem.host;
  const auto bytes = static_cast<double>(recomputes(way) ? part.share_bytes : whole(part));
  seconds += bytes * move.busy;
  if (next == nullptr) {
    return seconds + std::max(0.0, bytes * move.out - problem.after_last);
  }
  const double hides_in = next->backward + (recomputes(next_way) ? next->forward : 0);
  return seconds + std::max(0.0, bytes * move.out - next->forward) + std::max(0.0, bytes * move.in - hides_in);
}

// The largest unit moved so far.
enum class Moved { nothing, inputs, parts };

Moved after(Moved before, Way way) {
  return !moves(way) ? before : std::max(before, recomputes(way) ? Moved::inputs : Moved::parts);
}

struct Memory {
  int64_t largest = 0;
  int64_t largest_input = 0;
  int64_t at_work = 0;
  int64_t copies = 0; // of parts
  int64_t input_copies = 0;

  int64_t moving(Moved moved) const {
    return moved == Moved::nothing ? 0 : moved == Moved::inputs ? input_copies * largest_input : copies * largest;
  }
};

Memory memory_of(const Problem& problem) {
  Memory memory;
  for (const PartCost& part : problem.parts) {
    memory.largest = std::max(memory.largest, whole(part) + part.padding);
    memory.largest_input = std::max(memory.largest_input, moved_input(part));
    memory.at_work =
        std::max({memory.at_work, all_of(problem, part, Way::keep), all_of(problem, part, Way::recompute)});
  }
  // A micro-batch moves back while another one moves out. On the CPU `at_work` includes that one's part.
  const bool leaves_and_comes = several_in_flight(problem);
  memory.input_copies = problem.moving_copies + (leaves_and_comes ? 1 : 0);
  memory.copies = problem.moving_copies + (leaves_and_comes && problem.moving_copies == 1 ? 1 : 0);
  return memory;
}

// Bytes at a part: held before it, and its own. With several micro-batches in flight only the end of a forward counts.
int64_t bytes_at(const Problem& problem, const Memory& memory, int64_t held_before, size_t index, Way way,
                 Moved moved) {
  return several_in_flight(problem) ? 0
                                    : held_before + all_of(problem, problem.parts[index], way) + memory.moving(moved);
}

int64_t bytes_at_end(const Problem& problem, const Memory& memory, int64_t held, Moved moved) {
  return several_in_flight(problem) ? held + memory.at_work + memory.moving(moved) : 0;
}

// Policies for the parts so far; `before` is the index of the state that precedes it.
struct PartialChoice {
  int64_t held = 0;
  int64_t most = 0; // peak bytes so far
  int64_t in_files = 0;
  int64_t on_host = 0;
  double seconds = 0;
  int before = -1;
  Way way = Way::keep;
};

// Keeps the states that no other one dominates (holds less and costs less).
void thin_out(std::vector<PartialChoice>& states, int64_t budget) {
  std::sort(states.begin(), states.end(), [](const PartialChoice& a, const PartialChoice& b) {
    return std::tie(a.held, a.seconds, a.in_files, a.on_host, a.most) <
           std::tie(b.held, b.seconds, b.in_files, b.on_host, b.most);
  });
  std::vector<PartialChoice> best;
  for (const PartialChoice& state : states) {
    if (best.empty() || state.seconds < best.back().seconds) {
      best.push_back(state);
    }
  }
  if (best.size() > kMostStates) {
    const int64_t cell = std::max<int64_t>(1, budget / kGrid);
    std::vector<PartialChoice> coarse;
    for (const PartialChoice& state : best) { // the last one in each cell costs least
      if (!coarse.empty() && coarse.back().held / cell == state.held / cell) {
        coarse.back() = state;
      } else {
        coarse.push_back(state);
      }
    }
    best.swap(coarse);
  }
  states.swap(best);
}

std::vector<Way> allowed_ways(const Problem& problem) {
  std::vector<Way> ways = {Way::keep};
  for (const Way way : problem.allowed) {
    if (std::find(ways.begin(), ways.end(), way) == ways.end()) {
      ways.push_back(way);
    }
  }
  return ways;
}

bool has_room(const Problem& problem, int64_t in_files, int64_t on_host) {
  return in_files <= problem.file_room && on_host <= problem.host_room;
}

// The policies that hold the least, tried without moves, with moves of inputs, and with all: buffers may cost more than
// they save.
Choice least_memory(const Problem& problem) {
  const std::vector<Way> allowed = allowed_ways(problem);
  Choice best;
  for (const Moved may_move : {Moved::nothing, Moved::inputs, Moved::parts}) {
    std::vector<Way> ways;
    for (const PartCost& part : problem.parts) {
      Way least = Way::keep;
      for (const Way way : allowed) {
        if (after(Moved::nothing, way) <= may_move && held_by(problem, part, way) < held_by(problem, part, least)) {
          least = way;
        }
      }
      ways.push_back(least);
    }
    const Choice one = judge(problem, ways);
    if (best.ways.empty() || (one.bytes < best.bytes && has_room(problem, one.in_files, one.on_host))) {
      best = one;
    }
  }
  return best;
}

} // namespace

std::vector<Way> ways_that_move(bool to_host, bool to_files) {
  std::vector<Way> ways = {Way::keep, Way::recompute};
  if (to_host) {
    ways.insert(ways.end(), {Way::host, Way::recompute_host});
  }
  if (to_files) {
    ways.insert(ways.end(), {Way::nvme, Way::recompute_nvme});
  }
  return ways;
}

void even_out(std::vector<PartCost>& parts, const std::vector<int64_t>& kinds) {
  std::map<std::array<int64_t, 3>, std::vector<PartCost*>> alike;
  for (size_t i = 0; i < parts.size(); ++i) {
    alike[{kinds.at(i), parts[i].bytes, parts[i].input_bytes}].push_back(&parts[i]);
  }
  const auto level = [](std::vector<PartCost*>& group, double PartCost::* time) {
    const auto middle = group.begin() + static_cast<std::ptrdiff_t>(group.size() / 2);
    std::nth_element(group.begin(), middle, group.end(),
                     [&](const PartCost* a, const PartCost* b) { return a->*time < b->*time; });
    const double median = (*middle)->*time;
    for (PartCost* const part : group) {
      part->*time = median;
    }
  };
  for (auto& [what, group] : alike) {
    level(group, &PartCost::forward);
    level(group, &PartCost::backward);
  }
}

Choice judge(const Problem& problem, const std::vector<Way>& ways) {
  if (ways.size() != problem.parts.size()) {
    throw Error("activations", concat(ways.size(), " policies for ", problem.parts.size(), " parts"));
  }
  const Memory memory = memory_of(problem);
  Choice choice;
  choice.ways = ways;
  int64_t held = 0;
  Moved moved = Moved::nothing;
  for (size_t i = 0; i < ways.size(); ++i) {
    moved = after(moved, ways[i]);
    choice.bytes = std::max(choice.bytes, bytes_at(problem, memory, held, i, ways[i], moved));
    held += held_by(problem, problem.parts[i], ways[i]);
    choice.in_files += problem.in_flight * filed_by(problem.parts[i], ways[i]);
    choice.on_host += problem.in_flight * hosted_by(problem.parts[i], ways[i]);
    const bool last = i + 1 == ways.size();
    choice.seconds +=
        seconds_of(problem, i, ways[i], last ? nullptr : &problem.parts[i + 1], last ? Way::keep : ways[i + 1]);
  }
  choice.bytes = std::max(choice.bytes, bytes_at_end(problem, memory, held, moved));
  choice.fits = choice.bytes <= problem.budget && has_room(problem, choice.in_files, choice.on_host);
  return choice;
}

Choice choose(const Problem& problem) {
  const std::vector<Way> allowed = allowed_ways(problem);
  const Memory memory = memory_of(problem);
  const size_t parts = problem.parts.size();
  if (parts == 0) {
    return {.ways = {}, .fits = true};
  }
  // kept[i]: all states after part i. Only the last policy and what was moved affect later parts.
  using Key = std::pair<Way, Moved>;
  std::vector<std::vector<PartialChoice>> kept(parts);
  std::map<Key, std::vector<PartialChoice>> open;
  const auto enter = [&](std::map<Key, std::vector<PartialChoice>>& into, size_t index, Way way,
                         const PartialChoice& from, int before, Moved moved_before, double added) {
    const Moved moved = after(moved_before, way);
    const int64_t bytes = std::max(from.most, bytes_at(problem, memory, from.held, index, way, moved));
    const int64_t in_files = from.in_files + problem.in_flight * filed_by(problem.parts[index], way);
    const int64_t on_host = from.on_host + problem.in_flight * hosted_by(problem.parts[index], way);
    if (bytes > problem.budget || !has_room(problem, in_files, on_host)) {
      return;
    }
    into[{way, moved}].push_back({from.held + held_by(problem, problem.parts[index], way), bytes, in_files, on_host,
                                  from.seconds + added, before, way});
  };
  for (const Way way : allowed) {
    enter(open, 0, way, {}, -1, Moved::nothing, 0);
  }
  for (size_t i = 0;; ++i) {
    std::map<Key, std::vector<PartialChoice>> following;
    for (auto& [key, states] : open) {
      thin_out(states, problem.budget);
      for (const PartialChoice& state : states) {
        const auto place = static_cast<int>(kept[i].size());
        kept[i].push_back(state);
        if (i + 1 < parts) {
          for (const Way way : allowed) {
            enter(following, i + 1, way, state, place, key.second,
                  seconds_of(problem, i, key.first, &problem.parts[i + 1], way));
          }
        }
      }
    }
    if (i + 1 == parts) {
      break;
    }
    open.swap(following);
  }
  const PartialChoice* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [key, states] : open) {
    for (const PartialChoice& state : states) {
      const double seconds = state.seconds + seconds_of(problem, parts - 1, key.first, nullptr, Way::keep);
      if (bytes_at_end(problem, memory, state.held, key.second) <= problem.budget && seconds < least) {
        least = seconds;
        best = &state;
      }
    }
  }
  for (const auto& [room, goes_there] :
       {std::pair(problem.file_room, &to_nvme), std::pair(problem.host_room, &to_host)}) {
    if (best != nullptr || room == std::numeric_limits<int64_t>::max() ||
        std::none_of(allowed.begin(), allowed.end(), goes_there)) {
      continue;
    }
    Problem without = problem; // the cheapest states so far may have used up the room
    std::erase_if(without.allowed, goes_there);
    if (const Choice choice = choose(without); choice.fits) {
      return choice;
    }
  }
  if (best == nullptr) {
    return least_memory(problem);
  }
  std::vector<Way> ways(parts);
  for (size_t i = parts; i-- > 0;) {
    ways[i] = best->way;
    best = i > 0 ? &kept[i - 1][static_cast<size_t>(best->before)] : best;
  }
  return judge(problem, ways);
}

NoChoice why_none_fits(const Problem& problem, const Choice& least, const std::string& of_stage) {
  const auto room = [&](const char* of, bool (*goes_there)(Way), int64_t there) {
    const bool is_known = there < std::numeric_limits<int64_t>::max() / 4; // and is a limit
    return is_known && std::ranges::any_of(problem.allowed, goes_there)
               ? concat(' ', of, " room for ", format_bytes(there), '.')
               : "";
  };
  const bool may_write = std::ranges::any_of(problem.allowed, to_nvme);
  const bool looks_equal = format_bytes(problem.budget) == format_bytes(least.bytes);
  const auto told = [&](int64_t number) { return looks_equal ? concat(number, " B") : format_bytes(number); };
  return {
      concat("no choice for the activations of ", problem.parts.size(), " parts", of_stage, " fits memory_budget, ",
             told(problem.budget), ": the least is ", told(least.bytes), ", with ", join(to_words(least.ways), ", ")),
      concat("Raise memory_budget to ", least.bytes, may_write ? "" : ", give an nvme_path",
             ", or make the micro-batch smaller.", room("Files of a rank have", to_nvme, problem.file_room),
             room("The host of a rank has", to_host, problem.host_room))};
}

} // namespace trireme::activations
