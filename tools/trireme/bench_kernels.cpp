#include "bench_kernels.h"

#include "bench_optim.h"

#include <trireme/base/error.h>
#include <trireme/fused/fused.h>
#include <trireme/monitor/series.h>

#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <iomanip>
#include <ostream>
#include <string>
#include <vector>

namespace trireme::tools {
namespace {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<Tensors(const Tensors&)>;

struct Pair {
  std::string op;
  Operation fused, aten;
  Tensors inputs;
};

at::Tensor aten_attention(const at::Tensor& qkv, const at::Tensor& bias, int64_t heads) {
  const int64_t B = qkv.size(0);
  const int64_t T = qkv.size(1);
  const int64_t H = qkv.size(2) / 3;
  const auto parts = (qkv + bias).split(H, 2);
  const auto split_heads = [&](const at::Tensor& t) { return t.view({B, T, heads, H / heads}).transpose(1, 2); };
  const at::Tensor y = at::scaled_dot_product_attention(split_heads(parts[0]), split_heads(parts[1]),
                                                        split_heads(parts[2]), {}, 0.0, /*is_causal=*/true);
  return y.transpose(1, 2).reshape({B, T, H});
}

std::vector<Pair> pairs(const BenchKernelsArgs& args, at::ScalarType type) {
  torch::manual_seed(1);
  const auto made = [&](at::IntArrayRef shape) { return torch::randn(shape).to(type).requires_grad_(); };
  const int64_t H = args.hidden;
  const int64_t rows = args.batch * args.length;
  constexpr double kEps = 1e-5;
  const at::Tensor target = torch::randint(args.vocab, {rows}, at::kLong);
  const int64_t heads = args.heads;
  return {
      {"attention",
       [=](const Tensors& in) -> Tensors { return {fused::causal_attention(in[0], in[1], heads)}; },
       [=](const Tensors& in) -> Tensors { return {aten_attention(in[0], in[1], heads)}; },
       {made({args.batch, args.length, 3 * H}), made({3 * H})}},
      {"bias_gelu",
       [](const Tensors& in) -> Tensors { return {fused::bias_gelu(in[0], in[1], fused::Gelu::tanh)}; },
       [](const Tensors& in) -> Tensors { return {at::gelu(in[0] + in[1], "tanh")}; },
       {made({rows, 4 * H}), made({4 * H})}},
      {"layer_norm",
       [=](const Tensors& in) -> Tensors { return {fused::layer_norm(in[0], in[1], in[2], kEps)}; },
       [=](const Tensors& in) -> Tensors { return {at::layer_norm(in[0], {H}, in[1], in[2], kEps)}; },
       {made({rows, H}), made({H}), made({H})}},
      {"add_layer_norm",
       [=](const Tensors& in) -> Tensors {
         const auto [h, y] = fused::add_layer_norm(in[0], in[1], in[2], in[3], in[4], kEps);
         return {h, y};
       },
       [=](const Tensors& in) -> Tensors {
         const at::Tensor h = in[1] + (in[0] + in[2]);
         return {h, at::layer_norm(h, {H}, in[3], in[4], kEps)};
       },
       {made({rows, H}), made({rows, H}), made({H}), made({H}), made({H})}},
      {"cross_entropy",
       [=](const Tensors& in) -> Tensors { return {fused::cross_entropy(in[0], target, at::Reduction::Mean)}; },
       [=](const Tensors& in) -> Tensors { return {at::cross_entropy_loss(in[0], target)}; },
       {made({rows, args.vocab})}},
  };
}

class Rows {
 public:
  Rows(const BenchKernelsArgs& args, std::ostream& out) : args_(args), out_(out) {
    if (!args.json) {
      out_ << "op                      dtype  threads   fused_ms    aten_ms   ratio\n";
    }
  }

  void measure(const std::string& op, const char* dtype, const std::function<void()>& fused,
               const std::function<void()>& aten) {
    constexpr int kWarmUps = 2;
    std::vector<double> ours, theirs, ratios;
    for (int i = -kWarmUps; i < args_.repeats; ++i) {
      const double a = milliseconds(fused);
      const double b = milliseconds(aten);
      if (i >= 0) {
        ours.push_back(a);
        theirs.push_back(b);
        ratios.push_back(b / a);
      }
    }
    const int threads = at::get_num_threads();
    if (args_.json) {
      out_ << nlohmann::json{{"bench", "kernels"},
                             {"op", op},
                             {"dtype", dtype},
                             {"threads", threads},
                             {"fused_ms", monitor::median(ours)},
                             {"aten_ms", monitor::median(theirs)},
                             {"ratio", monitor::median(ratios)}}
           << '\n';
    } else {
      out_ << std::left << std::setw(24) << op << std::setw(5) << dtype << std::right << std::setw(9) << threads
           << std::fixed << std::setprecision(3) << std::setw(11) << monitor::median(ours) << std::setw(11)
           << monitor::median(theirs) << std::setprecision(2) << std::setw(8) << monitor::median(ratios) << '\n';
    }
    out_.flush();
  }

 private:
  const BenchKernelsArgs& args_;
  std::ostream& out_;
};

} // namespace

int bench_kernels(const BenchKernelsArgs& args, std::ostream& out) {
  if (args.hidden % args.heads != 0) {
    throw InputError("bench kernels", concat("--heads ", args.heads, " does not divide --hidden ", args.hidden, '.'));
  }
  const int before = at::get_num_threads();
  at::set_num_threads(args.threads > 0 ? args.threads : before);
  Rows rows(args, out);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const char* dtype = type == at::kFloat ? "fp32" : "bf16";
    for (const Pair& pair : pairs(args, type)) {
      rows.measure(pair.op, dtype, [&] { pair.fused(pair.inputs); }, [&] { pair.aten(pair.inputs); });
      const Tensors ours = pair.fused(pair.inputs);
      const Tensors theirs = pair.aten(pair.inputs);
      const auto backward = [&](const Tensors& outputs) {
        Tensors grads;
        for (const at::Tensor& output : outputs) {
          grads.push_back(at::ones_like(output));
        }
        return [&inputs = pair.inputs, outputs, grads] {
          torch::autograd::grad(outputs, inputs, grads, /*retain_graph=*/true);
        };
      };
      rows.measure(pair.op + "_backward", dtype, backward(ours), backward(theirs));
    }
  }
  at::set_num_threads(before);
  return 0;
}

} // namespace trireme::tools
