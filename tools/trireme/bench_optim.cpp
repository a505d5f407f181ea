#include "bench_optim.h"

#include <trireme/base/error.h>
#include <trireme/monitor/series.h>
#include <trireme/optim/optimizer.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <sys/mman.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <memory>
#include <new>
#include <ostream>

namespace trireme::tools {
namespace {

using optim::StateType;

struct Impl {
  const char* name;
  optim::Rule rule;
  /// Gradient and copy out in bf16, norm and clip.
  bool mixed;
  StateType state_type;
  /// Bytes of memory traffic per parameter.
  double bytes;
};

constexpr double kLimitBytes = 28;
constexpr double kScaleBytes = 2.0 * 2 * sizeof(float) / optim::kStateBlock; // two states' scales are read and written
constexpr std::array kImpls = {
    Impl{"adam", optim::AdamOptions{.beta2 = 0.95}, false, StateType::fp32, kLimitBytes},
    Impl{"adam_bf16", optim::AdamOptions{.beta2 = 0.95}, true, StateType::fp32, 30},
    Impl{"adam_bf16_states16", optim::AdamOptions{.beta2 = 0.95}, true, StateType::bf16, 22},
    Impl{"adam_bf16_states8", optim::AdamOptions{.beta2 = 0.95}, true, StateType::int8, 18 + kScaleBytes},
    Impl{"lamb", optim::LambOptions{}, false, StateType::fp32, 40},
    Impl{"lion", optim::LionOptions{}, false, StateType::fp32, 20},
    Impl{"adagrad", optim::AdagradOptions{}, false, StateType::fp32, 20},
    Impl{"rmsprop", optim::RmspropOptions{}, false, StateType::fp32, 20},
    Impl{"sgd", optim::SgdOptions{.momentum = 0.9}, false, StateType::fp32, 20},
};

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

/// One optimizer and the arrays that it steps.
class Stepped {
 public:
  Stepped(const Impl& impl, int64_t n, bool huge_pages) : impl_(impl) {
    const auto make = [&](float value, at::ScalarType type) { // half or a quarter of an fp32 array
      const auto floats =
          static_cast<int64_t>((static_cast<size_t>(n) * at::elementSize(type) + sizeof(float) - 1) / sizeof(float));
      at::Tensor array = flat(floats, 0, huge_pages).view(type).slice(0, 0, n);
      return value == 0 ? array : array.fill_(value);
    };
    optimizer_ = optim::make_optimizer({.rule = impl.rule, .state_type = impl.state_type});
    shard_.param = make(0.02F, at::kFloat);
    shard_.grad = make(0.01F, impl.mixed ? at::kBFloat16 : at::kFloat);
    if (impl.mixed) {
      shard_.param_copy = make(0, at::kBFloat16);
    }
    for (size_t i = 0; i < optimizer_->states().size(); ++i) {
      shard_.states.push_back(make(0, optim::scalar_type(impl.state_type)));
      if (impl.state_type == StateType::int8) {
        shard_.scales.push_back(at::zeros({(n + optim::kStateBlock - 1) / optim::kStateBlock}));
      }
    }
    shard_.lr = 1e-3;
    shard_.weight_decay = 0.1;
    constexpr int64_t kParameters = 16;
    for (int64_t i = 0; i < kParameters; ++i) {
      segments_.push_back({n * i / kParameters, n * (i + 1) / kParameters, i});
    }
    shard_.segments = segments_;
    norms_ = at::zeros({2 * kParameters}, at::kDouble);
    shard_.norms = norms_;
  }

  void step() {
    if (impl_.mixed) {
      constexpr double kLossScale = 1;
      shard_.grad_scale =
          std::min(1.0, 1 / (std::sqrt(optim::squared_norm(shard_.grad)) / kLossScale + 1e-6)) / kLossScale;
    }
    if (optimizer_->needs_norms()) {
      norms_.zero_();
      optimizer_->prepare(shard_, norms_);
    }
    optimizer_->step(shard_);
    ++shard_.step;
  }

 private:
  const Impl& impl_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::ShardStep shard_;
  std::vector<optim::Segment> segments_;
  at::Tensor norms_;
};

std::vector<double> measure(const BenchOptimArgs& args, const Impl& impl, const Arrays& limit_arrays,
                            std::ostream& out) {
  const int64_t n = limit_arrays.param.numel();
  Stepped stepped(impl, n, args.huge_pages);
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

std::vector<const Impl*> chosen(const std::vector<std::string>& names) {
  std::vector<const Impl*> found;
  std::string known;
  for (const Impl& impl : kImpls) {
    known += (known.empty() ? "" : ", ") + std::string(impl.name);
    if (names.empty() || std::find(names.begin(), names.end(), impl.name) != names.end()) {
      found.push_back(&impl);
    }
  }
  for (const std::string& name : names) {
    if (std::none_of(found.begin(), found.end(), [&](const Impl* impl) { return impl->name == name; })) {
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
  const std::vector<const Impl*> impls = chosen(args.impls);

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
      for (const Impl* impl : impls) {
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
