// Times forward and backward of attention over several ranks, for benchmarks/context.py, once per rank.
// Usage: benchmark_context_attention SPEC, the JSON object {"kind", "causal", "repeats", "sizes": [{"batch", "heads",
// "length", "head_size"}, ...]}. Rank 0 prints one JSON line a size: length, ms (median, the slowest rank's), ms_min,
// cpu_ms (of all ranks together, the median), checksum, sent_bytes (one rank's, of one call), peak_rss_bytes (the
// largest rank's).
#include <trireme/base/error.h>
#include <trireme/comm/world.h>
#include <trireme/monitor/resources.h>
#include <trireme/parallel/context/attention.h>
#include <trireme/parallel/context/sequence.h>

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <vector>

namespace {

using namespace trireme;

struct Measured {
  std::vector<double> ms, cpu_ms;
  double checksum = 0;
  int64_t sent_bytes = 0;
};

double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double largest(const comm::Group& ranks, double value) {
  const at::Tensor all = torch::full({1}, value, torch::kDouble);
  ranks.all_reduce(all, comm::ReduceOp::max).wait();
  return all.item<double>();
}

Measured measure(const comm::Group& ranks, const context::AttentionOptions& options, const nlohmann::json& size,
                 int repeats) {
  torch::manual_seed(1);
  const auto mine = [&] {
    const at::Tensor whole =
        torch::randn({size.at("batch"), size.at("heads"), size.at("length"), size.at("head_size")});
    return context::take_tokens(whole, ranks, options.kind, 2).clone();
  };
  const at::Tensor q = mine().requires_grad_(), k = mine().requires_grad_(), v = mine().requires_grad_(), dout = mine();
  Measured result;
  for (int repeat = -1; repeat < repeats; ++repeat) { // the first does not count
    for (const at::Tensor& x : {q, k, v}) {
      x.mutable_grad().reset();
    }
    const int64_t before = ranks.bytes_sent();
    ranks.barrier().wait();
    const double start = monitor::monotonic_seconds();
    const double cpu_start = cpu_seconds();
    const at::Tensor out = context::attention(q, k, v, ranks, options);
    out.backward(dout);
    at::Tensor cpu = torch::full({1}, (cpu_seconds() - cpu_start) * 1e3, torch::kDouble);
    const double seconds = largest(ranks, monitor::monotonic_seconds() - start);
    if (repeat >= 0) {
      result.ms.push_back(seconds * 1e3);
      result.sent_bytes = ranks.bytes_sent() - before - 2 * 8 * (ranks.size() - 1) / ranks.size();
      const at::Tensor sum = (out.abs().sum() + q.grad().abs().sum() + k.grad().abs().sum() + v.grad().abs().sum())
                                 .detach()
                                 .to(torch::kDouble)
                                 .view(1);
      ranks.all_reduce(sum).wait();
      ranks.all_reduce(cpu).wait();
      result.cpu_ms.push_back(cpu.item<double>());
      result.checksum = sum.item<double>();
    }
  }
  std::sort(result.ms.begin(), result.ms.end());
  std::sort(result.cpu_ms.begin(), result.cpu_ms.end());
  return result;
}

} // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) {
      throw InputError("context_attention", "one argument is needed: the JSON object that benchmarks/context.py makes.",
                       "Start it with benchmarks/context.py.");
    }
    const auto spec = nlohmann::json::parse(argv[1]);
    comm::World world = comm::World::connect();
    torch::set_num_threads(1);
    const context::AttentionOptions options{
        .kind = spec.at("kind") == "ring" ? context::Kind::ring : context::Kind::ulysses, .causal = spec.at("causal")};
    for (const auto& size : spec.at("sizes")) {
      const Measured measured = measure(world.group(), options, size, spec.at("repeats"));
      const double peak = largest(world.group(), static_cast<double>(monitor::peak_rss_bytes()));
      if (world.rank() == 0) {
        const nlohmann::json row{{"length", size.at("length")},
                                 {"ms", measured.ms[measured.ms.size() / 2]},
                                 {"ms_min", measured.ms.front()},
                                 {"cpu_ms", measured.cpu_ms[measured.cpu_ms.size() / 2]},
                                 {"checksum", measured.checksum},
                                 {"sent_bytes", measured.sent_bytes},
                                 {"peak_rss_bytes", static_cast<int64_t>(peak)}};
        std::printf("%s\n", row.dump().c_str());
        std::fflush(stdout);
      }
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "benchmark_context_attention: %s\n", error.what());
    return 2;
  }
}
