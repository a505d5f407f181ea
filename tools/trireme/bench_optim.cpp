#include "bench_optim.h"

#include "stepped_optimizer.h"

#include <trireme/base/error.h>
#include <trireme/monitor/series.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <sys/mman.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iomanip>
#include <new>
#include <ostream>

namespace trireme::tools {
namespace {

constexpr double kLimitBytes = 28; // of fp32 Adam

/// p, g, m and v of one size.
struct Arrays {
  at::Tensor param, grad, exp_avg, exp_avg_sq;
};

/// A flat fp32 array of `value`, first touched by the threads that will use it.
at::Tensor flat(int64_t n, float value, bool huge_pages) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = (static_cast<size_t>(n) * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, bytes);
  if (memory == nullptr) {
    throw Error("bench", concat("Out of memory for ", n, " parameters."), "Pass a smaller --params.");
  }
  ::madvise(memory, bytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); // advice only: a failure just costs speed
  at::Tensor tensor = at::from_blob(memory, {n}, [](void* p) { std::free(p); }, at::kFloat);
  return tensor.fill_(value);
}

// The widest instructions of the machine, chosen when the program is loaded: too early for ThreadSanitizer.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
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

struct Row {
  const char* impl;
  double bytes;
  int64_t params;
  int threads;
  std::vector<double> ms;
  double of_limit;
};

void print(const Row& row, bool json, std::ostream& out) {
  const double ms = monitor::median(row.ms);
  const double gb_per_s = row.bytes * static_cast<double>(row.params) / ms / 1e6;
  const double ms_min = *std::min_element(row.ms.begin(), row.ms.end());
  if (json) {
    out << nlohmann::json{{"bench", "optim"},       {"impl", row.impl},     {"params", row.params},
                          {"threads", row.threads}, {"bytes", row.bytes},   {"ms", ms},
                          {"ms_min", ms_min},       {"gb_per_s", gb_per_s}, {"of_limit", row.of_limit}}
        << '\n';
  } else {
    out << std::left << std::setw(19) << row.impl << std::right << std::setw(12) << row.params << std::setw(9)
        << row.threads << std::fixed << std::setprecision(1) << std::setw(7) << row.bytes << std::setprecision(3)
        << std::setw(11) << ms << std::setw(11) << ms_min << std::setprecision(1) << std::setw(8) << gb_per_s
        << std::setw(12) << 100 * row.of_limit << '\n';
  }
  out.flush();
}

std::vector<double> measure(const BenchOptimArgs& args, const SteppedRule& impl, const Arrays& limit_arrays,
                            std::ostream& out) {
  const int64_t n = limit_arrays.param.numel();
  SteppedOptimizer stepped(impl, n, [&](int64_t numel, at::ScalarType type) { // half or a quarter of an fp32 array
    const auto floats =
        static_cast<int64_t>((static_cast<size_t>(numel) * at::elementSize(type) + sizeof(float) - 1) / sizeof(float));
    return flat(floats, 0, args.huge_pages).view(type).slice(0, 0, numel);
  });
  constexpr int kWarmUps = 2;
  std::vector<double> own_ms, limit_ms, shares;
  for (int i = -kWarmUps; i < args.repeats; ++i) {
    const double limit = milliseconds([&] { stream(limit_arrays); });
    const double own = milliseconds([&] { stepped.step(); });
    if (i >= 0) {
      limit_ms.push_back(limit);
      own_ms.push_back(own);
      shares.push_back(limit * impl.bytes / kLimitBytes / own);
    }
  }
  print({impl.name, impl.bytes, n, at::get_num_threads(), own_ms, monitor::median(shares)}, args.json, out);
  return limit_ms;
}

std::vector<const SteppedRule*> chosen(const std::vector<std::string>& names) {
  std::vector<const SteppedRule*> found;
  std::string known;
  for (const SteppedRule& impl : stepped_rules()) {
    known += (known.empty() ? "" : ", ") + std::string(impl.name);
    if (names.empty() || std::find(names.begin(), names.end(), impl.name) != names.end()) {
      found.push_back(&impl);
    }
  }
  for (const std::string& name : names) {
    if (std::none_of(found.begin(), found.end(), [&](const SteppedRule* impl) { return impl->name == name; })) {
      throw InputError("bench", concat("--impl ", name, " is not a row."), concat("There are ", known, '.'));
    }
  }
  return found;
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
  const std::vector<const SteppedRule*> impls = chosen(args.impls);

  const int before = at::get_num_threads();
  const std::vector<int> thread_counts = args.threads.empty() ? std::vector<int>{before} : args.threads;
  if (!args.json) {
    out << "impl                     params  threads  bytes         ms     ms_min    GB/s  % of limit\n";
  }
  for (int64_t n : args.params) {
    const auto make = [&](float value) { return flat(n, value, args.huge_pages); };
    const Arrays arrays{make(0.02f), make(0.01f), make(0), make(0)};
    for (int threads : thread_counts) {
      at::set_num_threads(threads);
      std::vector<double> limit_ms;
      for (const SteppedRule* impl : impls) {
        const std::vector<double> beside = measure(args, *impl, arrays, out);
        limit_ms.insert(limit_ms.end(), beside.begin(), beside.end());
      }
      print({"limit", kLimitBytes, n, threads, limit_ms, 1.0}, args.json, out);
    }
  }
  at::set_num_threads(before);
  return 0;
}

} // namespace trireme::tools
