#include "bench_optim.h"

#include <trireme/base/error.h>
#include <trireme/optim/optimizer.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <memory>
#include <new>
#include <ostream>

namespace trireme::tools {
namespace {

constexpr int64_t kBytesPerParameter = 28;

/// p, g, m and v of one size.
struct Arrays {
  at::Tensor param, grad, exp_avg, exp_avg_sq;
};

/// A flat fp32 array of `value`, touched by the threads that will use it.
at::Tensor flat(int64_t n, float value, bool huge_pages) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = (static_cast<size_t>(n) * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, bytes);
  if (memory == nullptr) {
    throw Error("bench", concat("Out of memory for ", n, " parameters."), "Pass a smaller --params.");
  }
  ::madvise(memory, bytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); // advice: failing changes nothing but speed
  at::Tensor tensor = at::from_blob(memory, {n}, [](void* p) { std::free(p); }, at::kFloat);
  return tensor.fill_(value);
}

// The widest instructions that the machine has, chosen when the program is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#endif
void stream_range(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    p[i] = 0.9f * p[i] + 0.1f * g[i];
    m[i] = 0.9f * m[i] + 0.1f * g[i];
    v[i] = 0.9f * v[i] + 0.1f * g[i] * g[i];
  }
}

void stream(const Arrays& arrays) {
  float* p = arrays.param.mutable_data_ptr<float>();
  const float* g = arrays.grad.const_data_ptr<float>();
  float* m = arrays.exp_avg.mutable_data_ptr<float>();
  float* v = arrays.exp_avg_sq.mutable_data_ptr<float>();
  at::parallel_for(0, arrays.param.numel(), 16384, [&](int64_t begin, int64_t end) {
    stream_range(p + begin, g + begin, m + begin, v + begin, end - begin);
  });
}

template <class F>
double milliseconds(const F& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

struct Row {
  const char* impl;
  int64_t params;
  int threads;
  std::vector<double> ms;
  double of_limit;
};

void print(const Row& row, bool json, std::ostream& out) {
  const double ms = median(row.ms);
  const double gb_per_s = static_cast<double>(kBytesPerParameter * row.params) / ms / 1e6;
  const double ms_min = *std::min_element(row.ms.begin(), row.ms.end());
  if (json) {
    out << nlohmann::json{{"bench", "optim"}, {"impl", row.impl}, {"params", row.params}, {"threads", row.threads},
                          {"ms", ms}, {"ms_min", ms_min}, {"gb_per_s", gb_per_s}, {"of_limit", row.of_limit}}
        << '\n';
  } else {
    out << std::left << std::setw(8) << row.impl << std::right << std::setw(12) << row.params << std::setw(9)
        << row.threads << std::fixed << std::setprecision(3) << std::setw(11) << ms << std::setw(11) << ms_min
        << std::setprecision(1) << std::setw(8) << gb_per_s << std::setprecision(3) << std::setw(10) << row.of_limit
        << '\n';
  }
  out.flush();
}

void measure(const BenchOptimArgs& args, const Arrays& arrays, std::ostream& out) {
  optim::OptimizerOptions options;
  options.adam.beta2 = 0.95;
  const auto adam = optim::make_optimizer(options);
  optim::ShardStep shard;
  shard.param = arrays.param;
  shard.grad = arrays.grad;
  shard.states = {arrays.exp_avg, arrays.exp_avg_sq};
  shard.lr = 1e-3;
  shard.weight_decay = 0.1;

  constexpr int kWarmUps = 2;
  std::vector<double> adam_ms, limit_ms, ratios;
  for (int i = -kWarmUps; i < args.repeats; ++i) {
    const double limit = milliseconds([&] { stream(arrays); });
    const double ours = milliseconds([&] { adam->step(shard); });
    ++shard.step;
    if (i >= 0) {
      limit_ms.push_back(limit);
      adam_ms.push_back(ours);
      ratios.push_back(limit / ours);
    }
  }
  const int64_t n = arrays.param.numel();
  const int threads = at::get_num_threads();
  print({"adam", n, threads, adam_ms, median(ratios)}, args.json, out);
  print({"limit", n, threads, limit_ms, 1.0}, args.json, out);
}

} // namespace

int bench_optim(const BenchOptimArgs& args, std::ostream& out) {
  const auto check = [](const char* flag, int64_t value) {
    if (value < 1) {
      throw InputError("bench", concat(flag, " must be at least 1, got ", value, '.'));
    }
  };
  for (int64_t params : args.params) {
    check("--params", params);
  }
  for (int threads : args.threads) {
    check("--threads", threads);
  }
  check("--repeats", args.repeats);

  const int before = at::get_num_threads();
  const std::vector<int> thread_counts = args.threads.empty() ? std::vector<int>{before} : args.threads;
  if (!args.json) {
    out << "impl          params  threads         ms     ms_min    GB/s  of_limit\n";
  }
  for (int64_t n : args.params) {
    const auto make = [&](float value) { return flat(n, value, args.huge_pages); };
    const Arrays arrays{make(0.02f), make(0.01f), make(0), make(0)};
    for (int threads : thread_counts) {
      at::set_num_threads(threads);
      measure(args, arrays, out);
    }
  }
  at::set_num_threads(before);
  return 0;
}

} // namespace trireme::tools
