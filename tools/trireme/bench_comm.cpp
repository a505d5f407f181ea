#include "bench_comm.h"

#include <trireme/base/error.h>
#include <trireme/comm/world.h>
#include <trireme/kernels/kernels.h>

#include <ATen/Functions.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iomanip>
#include <limits>
#include <ostream>

namespace trireme::tools {
namespace {

using Clock = std::chrono::steady_clock;

/// Shorter measurements are repeated within one.
constexpr double kWorthTiming = 2e-3;
constexpr int kMostRounds = 2000;

/// The operation on tensors that lie where its backend likes them.
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
    } else { // around the ring: everybody sends one and receives one
      auto sent = group.send(whole, (group.rank() + 1) % group.size());
      group.recv(other, (group.rank() + group.size() - 1) % group.size()).wait();
      sent.wait();
    }
  }

  /// Half of what a rank reads and writes at least, if nobody's work is done twice.
  int64_t copied_bytes() const {
    const auto bytes = static_cast<int64_t>(whole.nbytes());
    const int64_t ranks = group.size();
    if (op == "reduce_scatter") {
      return (bytes + bytes / ranks) / 2;
    }
    if (op == "all_gather" || op == "broadcast") {
      return bytes * (ranks - 1) / ranks;
    }
    return op == "barrier" ? 0 : bytes;
  }
};

/// Seconds of one call: medians over the repeats, each the slowest rank's.
struct Times {
  double median = 0;
  double least = 0;
};

double slowest(const comm::Group& group, double seconds) {
  at::Tensor value = at::full({1}, seconds, at::kDouble);
  group.all_reduce(value, comm::ReduceOp::max).wait();
  return value.item<double>();
}

double measure(const comm::Group& group, const std::function<void()>& call, int rounds) {
  group.barrier().wait();
  const auto start = Clock::now();
  for (int round = 0; round < rounds; ++round) {
    call();
  }
  return slowest(group, std::chrono::duration<double>(Clock::now() - start).count()) / rounds;
}

Times times(const comm::Group& group, const std::function<void()>& call, int64_t repeats) {
  measure(group, call, 2);
  const double once = measure(group, call, 3);
  const int rounds = std::clamp(static_cast<int>(kWorthTiming / once), 1, kMostRounds);
  std::vector<double> seconds;
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    seconds.push_back(measure(group, call, rounds));
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front()};
}

Times limit(const Bench& bench, int64_t repeats) {
  const int64_t bytes = bench.copied_bytes();
  const at::Tensor from = at::ones({std::max<int64_t>(1, bytes)}, at::kByte);
  const at::Tensor to = at::zeros_like(from);
  const Times plain = times(bench.group, [&] { std::memcpy(to.data_ptr(), from.data_ptr(), static_cast<size_t>(bytes)); }, repeats);
  const Times streamed =
      times(bench.group, [&] { kernels::active_kernels().stream_copy(to.data_ptr(), from.data_ptr(), bytes); }, repeats);
  return streamed.median < plain.median ? streamed : plain;
}

void print(const std::string& backend, const Bench& bench, int64_t bytes, const Times& times, bool json, std::ostream& out) {
  if (bench.group.rank() != 0) {
    return;
  }
  const double gb_per_s = static_cast<double>(bytes) / times.median / 1e9;
  if (json) {
    out << nlohmann::json{{"bench", "comm"}, {"op", bench.op}, {"backend", backend}, {"ranks", bench.group.size()}, {"bytes", bytes},
                          {"us", times.median * 1e6}, {"us_min", times.least * 1e6}, {"gb_per_s", gb_per_s}}
        << '\n';
  } else {
    out << std::left << std::setw(12) << backend << std::right << std::setw(7) << bench.group.size() << std::setw(15) << bytes << std::fixed
        << std::setprecision(1) << std::setw(11) << times.median * 1e6 << std::setw(11) << times.least * 1e6 << std::setprecision(2)
        << std::setw(10) << gb_per_s << '\n';
  }
  out.flush();
}

} // namespace

int bench_comm(const BenchCommCommand& command, std::ostream& out) {
  comm::World world = comm::World::connect();
  if (world.size() < 2) {
    throw InputError("bench comm", "this process is alone.", "Start it with: trireme bench comm --ranks 2,4");
  }
  const comm::Group& group = world.group();
  for (const int64_t bytes : command.bytes) {
    const Bench bench(group, command.op, bytes);
    const auto moved = static_cast<int64_t>(bench.whole.nbytes());
    print(group.backend(), bench, moved, times(group, [&] { bench(); }, command.repeats), command.json, out);
    if (std::string(group.backend()) == "shm" && command.op != "barrier") {
      print("memcpy", bench, moved, limit(bench, command.repeats), command.json, out);
    }
  }
  return 0;
}

} // namespace trireme::tools
