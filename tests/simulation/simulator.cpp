#include "simulator.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace trireme::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr size_t kStoryLines = 400;
/// A killed process that goes on calling so often is left where it is: its stack is lost.
constexpr int kMostComplaints = 1000;

thread_local Simulator* current = nullptr;

bool later(const auto& a, const auto& b) {
  return std::pair(a.time, a.order) > std::pair(b.time, b.order);
}

} // namespace

Simulator::Simulator(uint64_t seed) : random_(seed), now_(std::chrono::hours(1)) {}

Simulator::~Simulator() {
  end_processes();
}

void Simulator::end_processes() {
  SimulatedTime* const before = SimulatedTime::install(this);
  Simulator* const outer = std::exchange(current, this);
  check_ = nullptr;
  for (int process = 0; process < processes(); ++process) {
    kill(process);
  }
  current = outer;
  SimulatedTime::install(before);
}

Simulator& Simulator::here() {
  return *current;
}

int Simulator::start(std::string name, std::function<void()> program, Clock::duration later) {
  const int number = processes();
  auto process = std::make_unique<Process>();
  process->name = std::move(name);
  process->fiber = std::make_unique<Fiber>([this, number, program = std::move(program)] {
    std::string& end = of(number).end;
    try {
      program();
    } catch (const Killed&) {
      end = "killed";
    } catch (const std::exception& error) {
      end = error.what();
    }
  });
  processes_.push_back(std::move(process));
  ++living_;
  at(now_ + later + random_.between(microseconds(0), milliseconds(2)), [this, number] {
    note("starts " + of(number).name);
    of(number).blocked = true;
    resume(number);
  });
  return number;
}

void Simulator::kill(int number) {
  Process& process = of(number);
  if (process.over || process.killed) {
    return;
  }
  note("killed: " + process.name);
  process.killed = true;
  process.end = "killed";
  for (const auto& action : std::exchange(process.at_end, {})) {
    action();
  }
  if (running_ == number) {
    throw Killed();
  }
  process.paused = false;
  if (running_ != -1) { // by another process, whose turn it is
    at(now_, [this, number] { resume(number); });
  } else {
    resume(number);
  }
}

void Simulator::kill_at_call(int number, int64_t count, bool after) {
  of(number).calls_left = count;
  of(number).dies_after = after;
}

void Simulator::pause(int number) {
  if (lives(number)) {
    note("stopped: " + name(number));
    of(number).paused = true;
  }
}

void Simulator::go_on(int number) {
  Process& process = of(number);
  if (process.paused) {
    note("goes on: " + process.name);
    process.paused = false;
    if (std::exchange(process.resumes_when_it_goes_on, false)) {
      at(now_, [this, number] { resume(number); });
    }
  }
}

bool Simulator::lives(int number) const {
  return !of(number).over && !of(number).killed;
}

const std::string& Simulator::end_of(int number) const {
  return of(number).end;
}

const std::string& Simulator::name(int number) const {
  return of(number).name;
}

void Simulator::after(Clock::duration time, std::function<void()> event) {
  at(now_ + time, std::move(event));
}

void Simulator::at(Clock::time_point time, std::function<void()> event) {
  events_.push_back({time, events_made_++, std::move(event)});
  std::push_heap(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return later(a, b); });
}

bool Simulator::run(Clock::duration limit) {
  const Clock::time_point end = now_ + limit;
  SimulatedTime* const before = SimulatedTime::install(this);
  Simulator* const outer = std::exchange(current, this);
  bool in_time = true;
  while (!events_.empty() && violation_.empty() && (living_ > 0 || events_.front().time <= now_)) {
    if (events_.front().time > end) {
      in_time = false;
      break;
    }
    std::pop_heap(events_.begin(), events_.end(), [](const Event& a, const Event& b) { return later(a, b); });
    const Event event = std::move(events_.back());
    events_.pop_back();
    now_ = std::max(now_, event.time);
    event.action();
    if (check_) {
      check_();
    }
  }
  current = outer;
  SimulatedTime::install(before);
  return in_time && violation_.empty() && living_ == 0;
}

void Simulator::violate(std::string what) {
  if (violation_.empty()) {
    note("VIOLATION: " + what);
    violation_ = std::move(what);
  }
}

void Simulator::note(std::string line) {
  char time[32];
  std::snprintf(time, sizeof(time), "%12.6f ",
                std::chrono::duration<double>(now_.time_since_epoch() - std::chrono::hours(1)).count());
  story_.push_back(time + std::move(line));
  if (story_.size() > kStoryLines) {
    story_.pop_front();
  }
}

std::string Simulator::story() const {
  std::string all;
  for (const std::string& line : story_) {
    all += line + '\n';
  }
  return all;
}

void Simulator::begin_call() {
  count_call(false);
}

void Simulator::sent() {
  count_call(true);
}

void Simulator::count_call(bool after) {
  Process& process = of(running_);
  if (process.killed) {
    if (++process.complaints > kMostComplaints) {
      process.fiber->leave(); // for ever
    }
    throw Killed();
  }
  if (process.calls_left && process.dies_after == after && --*process.calls_left < 0) {
    process.calls_left.reset();
    kill(running_);
  }
}

bool Simulator::block_until(Clock::time_point deadline, const std::function<bool()>& ready) {
  const int number = running_;
  Process& process = of(number);
  while (!process.killed && !ready()) {
    if (now_ >= deadline) {
      return false;
    }
    process.blocked = true;
    process.woken = false;
    const int64_t turn = ++process.turn;
    if (deadline != Clock::time_point::max()) {
      at(deadline, [this, number, turn] {
        if (of(number).turn == turn) {
          resume(number);
        }
      });
    }
    process.fiber->leave();
  }
  if (process.killed) {
    count_call(false);
  }
  return true;
}

void Simulator::wake(int number) {
  Process& process = of(number);
  if (!process.blocked || process.woken || process.over) {
    return;
  }
  process.woken = true;
  const auto until_it_runs = random_.chance(0.01) ? random_.between(milliseconds(0), milliseconds(30))
                                                  : random_.between(microseconds(1), microseconds(60));
  at(now_ + until_it_runs, [this, number, turn = process.turn] {
    if (of(number).turn == turn) {
      resume(number);
    }
  });
}

void Simulator::when_it_ends(int number, std::function<void()> action) {
  of(number).at_end.push_back(std::move(action));
}

Clock::duration Simulator::delay() {
  return random_.chance(0.03) ? random_.between(milliseconds(1), milliseconds(80))
                              : random_.between(microseconds(40), microseconds(600));
}

void Simulator::sleep_until(Clock::time_point time) {
  if (running_ == -1) {
    return;
  }
  begin_call();
  block_until(time, [] { return false; });
}

void Simulator::resume(int number) {
  Process& process = of(number);
  if (process.over || (!process.blocked && !process.killed)) {
    return;
  }
  if (process.paused) {
    process.resumes_when_it_goes_on = true;
    return;
  }
  if (process.killed && !process.blocked) { // before it has begun
    finish(number);
    return;
  }
  process.blocked = false;
  ++process.turn;
  running_ = number;
  process.fiber->enter();
  running_ = -1;
  if (process.fiber->ended() || process.complaints > kMostComplaints) {
    finish(number);
  }
}

void Simulator::finish(int number) {
  Process& process = of(number);
  process.over = true;
  --living_;
  if (!process.killed) {
    note("ends: " + process.name + (process.end.empty() ? "" : ": " + process.end));
    for (const auto& action : std::exchange(process.at_end, {})) {
      action();
    }
  }
  process.fiber.reset();
}

} // namespace trireme::simulation
