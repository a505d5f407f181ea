#include <trireme/base/fault.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace trireme::fault {
namespace {

enum class Kind : uint8_t { kill, stop, delay, nan, drop };

const std::vector<std::string> kPhases = {"data", "forward",    "backward", "all_reduce",
                                          "step", "checkpoint", "send",     "recv"};
const std::vector<std::string> kKinds = {"kill", "stop", "delay", "nan", "drop"};
const std::vector<std::string> kKeys = {"rank", "step", "phase", "kind", "seconds", "attempt"};

struct Fault {
  std::optional<int64_t> rank;
  std::optional<int64_t> step;
  Phase phase = Phase::step;
  Kind kind = Kind::kill;
  double seconds = 1;
  int64_t attempt = 0;
  int64_t last_struck = -1;
};

struct FaultPlan {
  std::mutex mutex;
  std::vector<Fault> faults;
  /// Below 0: set_step() was never called.
  int64_t step = -1;
  std::array<int64_t, 8> occurrences{};
};

FaultPlan& state() {
  static auto* const leaked = new FaultPlan; // threads may use it while statics are destroyed
  return *leaked;
}

[[noreturn]] void refuse(std::string_view fault, const std::string& happened, const std::string& next = "") {
  throw InputError("fault", concat("TRIREME_FAULT, \"", fault, "\": ", happened),
                   concat(next, next.empty() ? "" : " ", "An example: rank=1,step=7,phase=all_reduce,kind=kill."));
}

size_t word(std::string_view fault, const std::string& key, const std::string& value,
            const std::vector<std::string>& known) {
  const auto found = std::find(known.begin(), known.end(), value);
  if (found == known.end()) {
    refuse(fault, concat(key, '=', value, " is unknown."), did_you_mean(value, known));
  }
  return static_cast<size_t>(found - known.begin());
}

template <typename T>
T number(std::string_view fault, const std::string& key, const std::string& value) {
  T result{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc() || end != value.data() + value.size() || !(result >= 0) || !(result < T{1'000'000'000})) {
    refuse(fault, concat(key, '=', value, " must be a number >= 0."));
  }
  return result;
}

Fault read(const std::string& text, int size) {
  Fault fault;
  std::vector<std::string> seen;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      refuse(text, concat("unknown key \"", key, "\"."), did_you_mean(key, kKeys));
    }
    if (value.empty() || std::find(seen.begin(), seen.end(), key) != seen.end()) {
      refuse(text, concat('"', key, value.empty() ? "\" has no value." : "\" is given twice."));
    }
    seen.push_back(key);
    if (key == "rank") {
      fault.rank = number<int64_t>(text, key, value);
      if (*fault.rank >= size) {
        refuse(text, concat("there are ", size, " ranks, counted from 0."));
      }
    } else if (key == "step") {
      fault.step = number<int64_t>(text, key, value);
    } else if (key == "phase") {
      fault.phase = static_cast<Phase>(word(text, key, value, kPhases));
    } else if (key == "kind") {
      fault.kind = static_cast<Kind>(word(text, key, value, kKinds));
    } else if (key == "seconds") {
      fault.seconds = number<double>(text, key, value);
    } else {
      fault.attempt = number<int64_t>(text, key, value);
    }
  }
  for (const char* needed : {"phase", "kind"}) {
    if (std::find(seen.begin(), seen.end(), needed) == seen.end()) {
      refuse(text, concat('"', needed, "\" is missing."));
    }
  }
  const auto among = [&](std::initializer_list<Phase> phases) {
    return std::find(phases.begin(), phases.end(), fault.phase) != phases.end();
  };
  if (fault.kind == Kind::nan && !among({Phase::forward, Phase::backward, Phase::all_reduce, Phase::send})) {
    refuse(text, "kind=nan needs a phase with a tensor: forward, backward, all_reduce or send.");
  }
  if (fault.kind == Kind::drop && !among({Phase::all_reduce, Phase::send, Phase::recv})) {
    refuse(text, "kind=drop needs a phase that can be left out: all_reduce, send or recv.");
  }
  return fault;
}

} // namespace

void arm(std::string_view text, int rank, int size, int attempt) {
  std::vector<Fault> mine;
  for (const std::string& part : split(text, ';')) {
    const size_t begin = part.find_first_not_of(' ');
    if (begin == std::string::npos) {
      continue;
    }
    const Fault fault = read(part.substr(begin, part.find_last_not_of(' ') + 1 - begin), size);
    if ((!fault.rank || *fault.rank == rank) && fault.attempt == attempt) {
      mine.push_back(fault);
    }
  }
  FaultPlan& all = state();
  const std::lock_guard lock(all.mutex);
  all.faults = std::move(mine);
  all.step = -1;
  all.occurrences = {};
  detail::armed = !all.faults.empty();
}

void arm_from_environment(int rank, int size) {
  if (const auto text = env::text("TRIREME_FAULT")) {
    std::tie(rank, size) = env::place("TRIREME_WORKER").value_or(std::pair(rank, size));
    arm(*text, rank, size, static_cast<int>(env::integer("TORCHELASTIC_RESTART_COUNT").value_or(0)));
  }
}

void set_step(int64_t step) {
  if (detail::armed.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(state().mutex);
    state().step = step;
  }
}

Effect detail::strike(Phase phase) {
  FaultPlan& all = state();
  Fault hit;
  int64_t step = 0;
  {
    const std::lock_guard lock(all.mutex);
    const int64_t occurrence = ++all.occurrences[static_cast<size_t>(phase)];
    step = all.step < 0 ? occurrence : all.step;
    const auto found = std::find_if(all.faults.begin(), all.faults.end(), [&](const Fault& fault) {
      return fault.phase == phase && (fault.step ? *fault.step == step : step > 0) && fault.last_struck != step;
    });
    if (found == all.faults.end()) {
      return Effect::none;
    }
    found->last_struck = step;
    hit = *found;
  }
  if (hit.step) { // one for every step would flood the output
    log::warning("TRIREME_FAULT: ", kKinds[static_cast<size_t>(hit.kind)], " in ", kPhases[static_cast<size_t>(phase)],
                 " of step ", step);
  }
  switch (hit.kind) {
    case Kind::kill:
      raise(SIGKILL);
      break;
    case Kind::stop:
      raise(SIGSTOP);
      break;
    case Kind::delay:
      std::this_thread::sleep_for(std::chrono::duration<double>(hit.seconds));
      break;
    case Kind::nan:
      return Effect::nan;
    case Kind::drop:
      return Effect::drop;
  }
  return Effect::none;
}

} // namespace trireme::fault
