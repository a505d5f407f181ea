#include "bench_attention.h"

#include "bench_optim.h"

#include <trireme/attention/block_layout.h>
#include <trireme/base/error.h>
#include <trireme/device/peak_bytes.h>
#include <trireme/fused/sparse_attention.h>
#include <trireme/monitor/series.h>

#include <ATen/Parallel.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/autograd.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <iomanip>
#include <memory>
#include <ostream>
#include <vector>

namespace trireme::tools {
namespace {

using attention::BlockLayout;

struct Way {
  std::string kind;
  const char* impl;
  double density;
  std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)> attend;
  std::vector<double> forward_ms = {};
  std::vector<double> backward_ms = {};
  int64_t peak_bytes = 0;
};

struct Inputs {
  at::Tensor q, k, v, dout;

  explicit Inputs(const BenchAttentionCommand& command) {
    torch::manual_seed(1);
    const auto made = [&] {
      return torch::randn({command.batch, command.length, command.heads, command.head_dim})
          .to(command.dtype == "bf16" ? at::kBFloat16 : at::kFloat)
          .transpose(1, 2);
    };
    q = made().requires_grad_();
    k = made().requires_grad_();
    v = made().requires_grad_();
    dout = made();
  }
};

attention::LayoutOptions layout_of(const BenchAttentionCommand& command, attention::Kind kind) {
  attention::LayoutOptions options;
  options.kind = kind;
  options.block = command.block;
  options.causal = command.causal;
  options.num_random_blocks = kind == attention::Kind::bigbird ? 1 : 0;
  return options;
}

std::vector<Way> ways_of(const BenchAttentionCommand& command) {
  std::vector<Way> ways;
  ways.push_back({"dense", "sdpa", 1, [causal = command.causal](const auto& q, const auto& k, const auto& v) {
                    return at::scaled_dot_product_attention(q, k, v, {}, 0, causal);
                  }});
  for (const std::string& name : command.kinds) {
    for (int number = 0; number <= static_cast<int>(attention::Kind::window); ++number) {
      const auto kind = static_cast<attention::Kind>(number);
      if (name != attention::kind_name(kind) && !(name == "longformer" && kind == attention::Kind::bslongformer)) {
        continue;
      }
      const attention::LayoutOptions options = layout_of(command, kind);
      check_layout(options, command.length);
      const auto layout = std::make_shared<const BlockLayout>(make_layout(options, command.heads, command.length));
      ways.push_back({name, "trireme", layout->density(), [layout](const auto& q, const auto& k, const auto& v) {
                        return fused::sparse_attention(q, k, v, layout);
                      }});
    }
  }
  return ways;
}

void run(Way& way, const Inputs& in, bool counts) {
  at::Tensor out;
  const double forward = milliseconds([&] { out = way.attend(in.q, in.k, in.v); });
  const double backward = milliseconds([&] { torch::autograd::grad({out}, {in.q, in.k, in.v}, {in.dout}); });
  if (counts) {
    way.forward_ms.push_back(forward);
    way.backward_ms.push_back(backward);
  }
}

void measure_memory(Way& way, const Inputs& in) {
  const auto peak = std::make_shared<device::PeakBytes>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, peak);
    run(way, in, false);
  }
  way.peak_bytes = peak->peak();
}

double speedup(const Way& way, const Way& sdpa) {
  std::vector<double> ratios;
  for (size_t i = 0; i < way.forward_ms.size(); ++i) {
    ratios.push_back((sdpa.forward_ms[i] + sdpa.backward_ms[i]) / (way.forward_ms[i] + way.backward_ms[i]));
  }
  return monitor::median(ratios);
}

void print(const Way& way, const Way& sdpa, const BenchAttentionCommand& command, std::ostream& out) {
  const double forward = monitor::median(way.forward_ms), backward = monitor::median(way.backward_ms);
  const double faster = speedup(way, sdpa);
  if (command.json) {
    out << nlohmann::ordered_json{{"bench", "attention"},    {"kind", way.kind},
                                  {"impl", way.impl},        {"length", command.length},
                                  {"density", way.density},  {"forward_ms", forward},
                                  {"backward_ms", backward}, {"peak_bytes", way.peak_bytes},
                                  {"speedup", faster},       {"limit", 1 / way.density}}
        << '\n';
    return;
  }
  out << std::left << std::setw(14) << way.kind << std::setw(10) << way.impl << std::right << std::fixed << std::setw(8)
      << command.length << std::setprecision(4) << std::setw(10) << way.density << std::setprecision(2) << std::setw(12)
      << forward << std::setw(13) << backward << std::setw(13) << way.peak_bytes << std::setw(9) << faster
      << std::setw(9) << 1 / way.density << '\n';
}

} // namespace

int bench_attention(const BenchAttentionCommand& command, std::ostream& out) {
  constexpr int kWarmUps = 1;
  if (command.threads > 0) {
    at::set_num_threads(static_cast<int>(command.threads));
  }
  std::vector<Way> ways = ways_of(command);
  const Inputs in(command);
  for (int64_t round = -kWarmUps; round < command.repeats; ++round) {
    for (Way& way : ways) {
      run(way, in, round >= 0);
    }
  }
  if (!command.json) {
    out << "kind          impl        length   density  forward_ms  backward_ms   peak_bytes  speedup    limit\n";
  }
  for (Way& way : ways) {
    measure_memory(way, in);
    print(way, ways.front(), command, out);
  }
  return 0;
}

} // namespace trireme::tools
