#include "bench_comm.h"

#include <trireme/base/error.h>
#include <trireme/comm/algorithms/all_reduce.h>
#include <trireme/comm/world.h>
#include <trireme/kernels/kernels.h>

#include <ATen/Functions.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iomanip>
#include <optional>
#include <ostream>

namespace trireme::tools {
namespace {

using Clock = std::chrono::steady_clock;

/// Calls shorter than this are repeated within one measurement.
constexpr double kWorthTiming = 2e-3;
constexpr int kMostRounds = 2000;

/// The operation, on tensors in memory that its backend prefers.
struct Bench {
  comm::Group group;
  std::string op;
  at::Tensor whole;
  at::Tensor other;
  at::Tensor part;

  Bench(const comm::Group& g, std::string name, int64_t bytes) : group(g), op(std::move(name)) {
    const int64_t n = std::max<int64_t>(1, bytes / static_cast<int64_t>(sizeof(float)) / group.size()) * group.size();
    whole = group.allocate(n, at::kFloat).zero_();
    part = whole.narrow(0, n / group.size() * group.rank(), n / group.size());
    if (op == "all_to_all" || op == "send") {
      other = group.allocate(n, at::kFloat).zero_();
    }
  }

  void operator()() const {
    if (op == "all_reduce") {
      group.all_reduce(whole).wait();
    } else if (op == "reduce_scatter") {
      group.reduce_scatter(part, whole).wait();
    } else if (op == "all_gather") {
      group.all_gather(whole, part).wait();
    } else if (op == "broadcast") {
      group.broadcast(whole, 0).wait();
    } else if (op == "all_to_all") {
      group.all_to_all(other, whole).wait();
    } else if (op == "barrier") {
      group.barrier().wait();
    } else { // around the ring: each rank sends one and receives one
      auto sent = group.send(whole, (group.rank() + 1) % group.size());
      group.recv(other, (group.rank() + group.size() - 1) % group.size()).wait();
      sent.wait();
    }
  }

  int64_t bytes() const { return static_cast<int64_t>(whole.nbytes()); }
  /// Bytes that a rank copies for the limit.
  int64_t copied_bytes() const {
    const int64_t ranks = group.size();
    if (op == "reduce_scatter") {
      return (bytes() + bytes() / ranks) / 2;
    }
    if (op == "all_gather" || op == "broadcast") {
      return bytes() * (ranks - 1) / ranks;
    }
    return op == "barrier" ? 0 : bytes();
  }
};

double of_all(const comm::Group& group, double mine, comm::ReduceOp op) {
  at::Tensor value = at::full({1}, mine, at::kDouble);
  group.all_reduce(value, op).wait();
  return value.item<double>();
}

int64_t largest(const comm::Group& group, int64_t mine) {
  return static_cast<int64_t>(of_all(group, static_cast<double>(mine), comm::ReduceOp::max));
}

/// Seconds of one call on the slowest rank.
double measure(const comm::Group& group, const std::function<void()>& call, int rounds) {
  group.barrier().wait();
  const auto start = Clock::now();
  for (int round = 0; round < rounds; ++round) {
    call();
  }
  return of_all(group, std::chrono::duration<double>(Clock::now() - start).count(), comm::ReduceOp::max) / rounds;
}

/// One of the alternatives that are measured in turns.
struct Contestant {
  std::string name;
  std::function<void()> call;
  std::optional<comm::Algorithm> algorithm = {};
  comm::Traffic traffic = {};
  int rounds = 1;
  std::vector<double> seconds = {};

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  double least() const { return *std::min_element(seconds.begin(), seconds.end()); }
};

void run_in_turns(const comm::Group& group, std::vector<Contestant>& contestants, int64_t repeats) {
  for (auto& contestant : contestants) {
    measure(group, contestant.call, 2);
    const double once = std::max(measure(group, contestant.call, 3), kWorthTiming / kMostRounds);
    contestant.rounds = std::max(1, static_cast<int>(kWorthTiming / once));
  }
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    for (auto& contestant : contestants) {
      contestant.seconds.push_back(measure(group, contestant.call, contestant.rounds));
    }
  }
}

/// Adds the two kinds of copies, after all other contestants.
void add_copies(const Bench& bench, std::vector<Contestant>& contestants) {
  const int64_t bytes = bench.copied_bytes();
  const at::Tensor from = at::ones({std::max<int64_t>(1, bytes)}, at::kByte);
  const at::Tensor to = at::zeros_like(from);
  contestants.push_back({"memcpy", [=] { std::memcpy(to.data_ptr(), from.data_ptr(), static_cast<size_t>(bytes)); }});
  contestants.push_back(
      {"memcpy", [=] { kernels::active_kernels().stream_copy(to.data_ptr(), from.data_ptr(), bytes); }});
}

nlohmann::ordered_json row(const Bench& bench, const std::string& backend, const Contestant& measured, double limit) {
  nlohmann::ordered_json json = {{"bench", "comm"},
                                 {"op", bench.op},
                                 {"backend", backend},
                                 {"algorithm", measured.name},
                                 {"ranks", bench.group.size()},
                                 {"bytes", bench.bytes()},
                                 {"us", measured.median() * 1e6},
                                 {"us_min", measured.least() * 1e6},
                                 {"gb_per_s", static_cast<double>(bench.bytes()) / measured.median() / 1e9},
                                 {"of_limit", limit / measured.median()}};
  if (measured.algorithm) {
    const comm::Cost formula = comm::cost(*measured.algorithm, bench.group.size(), bench.bytes());
    json["steps"] = measured.traffic.steps;
    json["steps_formula"] = formula.steps;
    json["bytes_sent"] = measured.traffic.bytes_sent;
    json["bytes_formula"] = static_cast<int64_t>(formula.bytes_busiest);
    json["messages"] = measured.traffic.messages;
  }
  return json;
}

void print_row(const nlohmann::ordered_json& row, bool json, std::ostream& out) {
  if (json) {
    out << row << std::endl;
    return;
  }
  out << std::left << std::setw(8) << row["backend"].get<std::string>() << std::setw(18)
      << row["algorithm"].get<std::string>() << std::right << std::setw(5) << row["ranks"].get<int>() << std::setw(12)
      << row["bytes"].get<int64_t>() << std::fixed << std::setprecision(1) << std::setw(11) << row["us"].get<double>()
      << std::setw(11) << row["us_min"].get<double>() << std::setprecision(2) << std::setw(9)
      << row["gb_per_s"].get<double>() << std::setw(10) << row["of_limit"].get<double>();
  if (row.contains("steps")) {
    out << std::setw(7) << row["steps"].get<int64_t>() << std::setw(5) << row["steps_formula"].get<int64_t>()
        << std::setw(12) << row["bytes_sent"].get<int64_t>() << std::setw(12) << row["bytes_formula"].get<int64_t>();
  }
  out << std::endl;
}

std::vector<Contestant> contestants_of(const BenchCommCommand& command, const Bench& bench) {
  std::vector<Contestant> contestants;
  for (const std::string& name : command.algorithms) {
    if (name == "backend") {
      contestants.push_back({name, [&bench] { bench(); }});
      continue;
    }
    const comm::Algorithm algorithm = comm::algorithm_named(name);
    contestants.push_back(
        {name, [&bench, algorithm] { comm::all_reduce(algorithm, bench.group, bench.whole); }, algorithm});
    const comm::Traffic mine = comm::all_reduce(algorithm, bench.group, bench.whole);
    contestants.back().traffic = {largest(bench.group, mine.steps), largest(bench.group, mine.messages),
                                  largest(bench.group, mine.bytes_sent)};
  }
  return contestants;
}

} // namespace

int bench_comm(const BenchCommCommand& command, std::ostream& out) {
  comm::World world = comm::World::connect();
  if (world.size() < 2) {
    throw InputError("bench comm", "this process is alone.", "Start it with: trireme bench comm --ranks 2,4");
  }
  const comm::Group& group = world.group();
  const std::string backend = group.backend();
  for (const int64_t bytes : command.bytes) {
    const Bench bench(group, command.op, bytes);
    std::vector<Contestant> contestants = contestants_of(command, bench);
    add_copies(bench, contestants);
    run_in_turns(group, contestants, command.repeats);
    const Contestant streamed = std::move(contestants.back());
    contestants.pop_back();
    const Contestant plain = std::move(contestants.back());
    contestants.pop_back();
    const Contestant& limit = streamed.median() < plain.median() ? streamed : plain;
    if (world.rank() != 0) {
      continue;
    }
    for (const auto& contestant : contestants) {
      print_row(row(bench, backend, contestant, limit.median()), command.json, out);
    }
    if (backend == command.backends.front() && command.op != "barrier") {
      print_row(row(bench, "memcpy", limit, limit.median()), command.json, out);
    }
  }
  return 0;
}

} // namespace trireme::tools
