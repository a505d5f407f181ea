// Fused operations against ATen's in double: forward, every gradient, both types, odd sizes, thread counts.
#include <trireme/fused/fused.h>

#include <trireme/base/error.h>
#include <trireme/memory/recompute/recompute.h>

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <functional>

namespace trireme::fused {
namespace {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<Tensors(const Tensors&)>;

struct Case {
  const char* name;
  Operation ours, reference;
  std::function<Tensors(const at::TensorOptions&)> inputs; ///< parameters too
};

Tensors made(std::initializer_list<std::vector<int64_t>> shapes, const at::TensorOptions& options) {
  Tensors tensors;
  for (const auto& shape : shapes) {
    tensors.push_back(torch::randn(shape).to(options));
  }
  return tensors;
}

Tensors as_leaves(const Tensors& tensors, at::ScalarType type) {
  Tensors leaves;
  for (const at::Tensor& t : tensors) {
    leaves.push_back(t.is_floating_point() ? t.detach().to(type).clone().requires_grad_() : t);
  }
  return leaves;
}

/// Outputs, then the gradient of each floating-point input for fixed gradients of the outputs.
Tensors results(const Operation& f, const Tensors& leaves) {
  const Tensors outputs = f(leaves);
  Tensors grads, wanted;
  for (size_t i = 0; i < outputs.size(); ++i) {
    torch::manual_seed(static_cast<uint64_t>(90 + i));
    grads.push_back(torch::randn(outputs[i].sizes()).to(at::kBFloat16).to(outputs[i].scalar_type()));
  }
  for (const at::Tensor& leaf : leaves) {
    if (leaf.requires_grad()) {
      wanted.push_back(leaf);
    }
  }
  Tensors all = outputs;
  for (const at::Tensor& grad : torch::autograd::grad(outputs, wanted, grads)) {
    all.push_back(grad);
  }
  return all;
}

at::Tensor reference_attention(const Tensors& in, int64_t heads) {
  const int64_t B = in[0].size(0), T = in[0].size(1), H = in[0].size(2) / 3;
  const auto qkv = (in[0] + in[1]).view({B, T, 3, heads, H / heads}).permute({2, 0, 3, 1, 4});
  const at::Tensor scores = at::matmul(qkv[0], qkv[1].transpose(2, 3)) / std::sqrt(static_cast<double>(H / heads));
  const at::Tensor hidden = at::ones({T, T}, at::kBool).triu(1);
  return at::matmul(scores.masked_fill(hidden, -INFINITY).softmax(-1), qkv[2]).transpose(1, 2).reshape({B, T, H});
}

Case gelu_case(int64_t rows, int64_t columns, Gelu form) {
  return {"bias_gelu", [=](const Tensors& in) -> Tensors { return {bias_gelu(in[0], in[1], form)}; },
          [=](const Tensors& in) -> Tensors { return {at::gelu(in[0] + in[1], form == Gelu::tanh ? "tanh" : "none")}; },
          [=](const at::TensorOptions& options) { return made({{rows, columns}, {columns}}, options); }};
}

Case norm_case(int64_t rows, int64_t columns) {
  return {"layer_norm", [](const Tensors& in) -> Tensors { return {layer_norm(in[0], in[1], in[2], 1e-5)}; },
          [=](const Tensors& in) -> Tensors { return {at::layer_norm(in[0], {columns}, in[1], in[2], 1e-5)}; },
          [=](const at::TensorOptions& options) { return made({{2, rows, columns}, {columns}, {columns}}, options); }};
}

Case add_norm_case(int64_t rows, int64_t columns) {
  return {"add_layer_norm",
          [](const Tensors& in) -> Tensors {
            const auto [h, y] = add_layer_norm(in[0], in[1], in[2], in[3], in[4], 1e-5);
            return {h, y};
          },
          [=](const Tensors& in) -> Tensors {
            const at::Tensor h = in[0] + in[1] + in[2];
            return {h, at::layer_norm(h, {columns}, in[3], in[4], 1e-5)};
          },
          [=](const at::TensorOptions& options) {
            return made({{rows, columns}, {rows, columns}, {columns}, {columns}, {columns}}, options);
          }};
}

Case add_case(int64_t rows, int64_t columns) {
  return {
      "add_bias", [](const Tensors& in) -> Tensors { return {add_bias(in[0], in[1], in[2])}; },
      [](const Tensors& in) -> Tensors { return {in[0] + in[1] + in[2]}; },
      [=](const at::TensorOptions& options) { return made({{rows, columns}, {rows, columns}, {columns}}, options); }};
}

Case attention_case(int64_t batch, int64_t length, int64_t heads, int64_t size) {
  return {"causal_attention", [=](const Tensors& in) -> Tensors { return {causal_attention(in[0], in[1], heads)}; },
          [=](const Tensors& in) -> Tensors { return {reference_attention(in, heads)}; },
          [=](const at::TensorOptions& options) {
            return made({{batch, length, 3 * heads * size}, {3 * heads * size}}, options);
          }};
}

Case entropy_case(int64_t rows, int64_t classes, int64_t reduction, Logits after) {
  return {"cross_entropy",
          [=](const Tensors& in) -> Tensors { return {cross_entropy(in[0] * 1, in[1], reduction, 3, after)}; },
          [=](const Tensors& in) -> Tensors { return {at::cross_entropy_loss(in[0], in[1], {}, reduction, 3)}; },
          [=](const at::TensorOptions& options) {
            Tensors in = made({{rows, classes}}, options);
            in.push_back(torch::arange(rows) * 5 % classes);
            return in;
          }};
}

at::Tensor reference_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps) * weight;
}

Case rms_case(int64_t rows, int64_t columns) {
  return {"rms_norm", [](const Tensors& in) -> Tensors { return {rms_norm(in[0], in[1], 1e-5)}; },
          [](const Tensors& in) -> Tensors { return {reference_rms_norm(in[0], in[1], 1e-5)}; },
          [=](const at::TensorOptions& options) { return made({{2, rows, columns}, {columns}}, options); }};
}

Case add_rms_case(int64_t rows, int64_t columns) {
  return {
      "add_rms_norm",
      [](const Tensors& in) -> Tensors {
        const auto [h, y] = add_rms_norm(in[0], in[1], in[2], 1e-5);
        return {h, y};
      },
      [](const Tensors& in) -> Tensors {
        const at::Tensor h = in[0] + in[1];
        return {h, reference_rms_norm(h, in[2], 1e-5)};
      },
      [=](const at::TensorOptions& options) { return made({{rows, columns}, {rows, columns}, {columns}}, options); }};
}

Case silu_case(int64_t rows, int64_t columns) {
  return {"gated_silu", [](const Tensors& in) -> Tensors { return {gated_silu(in[0], in[1])}; },
          [](const Tensors& in) -> Tensors { return {at::silu(in[0]) * in[1]}; },
          [=](const at::TensorOptions& options) { return made({{rows, columns}, {rows, columns}}, options); }};
}

/// Angles of tokens, the same in every type.
at::Tensor angles(int64_t tokens, int64_t half) {
  return torch::arange(tokens, at::kFloat).unsqueeze(1) * torch::pow(50.0, -torch::arange(half, at::kFloat) / half);
}

at::Tensor reference_rotation(const at::Tensor& x) {
  const at::Tensor angle = angles(x.size(2), x.size(3) / 2).to(at::kDouble);
  const at::Tensor both = at::cat({angle, angle}, 1);
  const auto halves = x.chunk(2, -1);
  return x * both.cos() + at::cat({-halves[1], halves[0]}, -1) * both.sin();
}

Case rotary_case(int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t size) {
  return {"rotate",
          [=](const Tensors& in) -> Tensors {
            const at::Tensor angle = angles(tokens, size / 2);
            const auto [q, k] = rotate(in[0].transpose(1, 2), in[1].transpose(1, 2), angle.cos(), angle.sin());
            return {q, k};
          },
          [](const Tensors& in) -> Tensors {
            return {reference_rotation(in[0].transpose(1, 2)), reference_rotation(in[1].transpose(1, 2))};
          },
          [=](const at::TensorOptions& options) {
            return made({{batch, tokens, heads, size}, {batch, tokens, kv_heads, size}}, options);
          }};
}

Case linear_case(const std::vector<int64_t>& sizes, int64_t outputs) {
  return {"linear", [](const Tensors& in) -> Tensors { return {fused::linear(in[0], in[1])}; },
          [](const Tensors& in) -> Tensors { return {at::linear(in[0], in[1])}; },
          [=](const at::TensorOptions& options) { return made({sizes, {outputs, sizes.back()}}, options); }};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {1, 40}, {33, 16}, {70, 77}}) {
    all.push_back(gelu_case(rows, columns, Gelu::tanh));
    all.push_back(gelu_case(rows, columns, Gelu::erf));
    if (columns > 1) { // one column is its own mean, and but for its sign its own root mean square
      all.push_back(norm_case(rows, columns));
      all.push_back(add_norm_case(rows, columns));
      all.push_back(rms_case(rows, columns));
      all.push_back(add_rms_case(rows, columns));
    }
    all.push_back(add_case(rows, columns));
    all.push_back(silu_case(rows, columns));
    all.push_back(rotary_case(2, rows, 3, 1, 2 * columns));
  }
  for (Logits after : {Logits::keep, Logits::overwrite}) {
    all.push_back(entropy_case(1, 5, at::Reduction::Mean, after));
    all.push_back(entropy_case(37, 101, at::Reduction::Mean, after));
    all.push_back(entropy_case(12, 64, at::Reduction::Sum, after));
  }
  all.push_back(linear_case({7}, 8192));               // a vector
  all.push_back(linear_case({3, 15, 24}, 8192 + 700)); // in blocks, on some processors
  all.push_back(linear_case({1025, 8}, 8192));
  all.push_back(linear_case({12, 24}, 100));
  all.push_back(attention_case(1, 1, 1, 1));
  all.push_back(attention_case(2, 17, 3, 8));
  all.push_back(attention_case(1, 50, 2, 33));
  all.push_back(attention_case(1, 129, 1, 64));
  all.push_back(attention_case(1, 70, 1, 128));
  return all;
}

std::string where(const Case& c, const Tensors& inputs) {
  std::string text = c.name;
  for (const at::Tensor& t : inputs) {
    text += concat(' ', t.sizes());
  }
  return text;
}

// fp32: 1e-5 of the largest element; sums over rows and the chain of a softmax stay well inside. bf16: one rounding of
// inputs that are the same, 2^-8 of each element, and of what a stored intermediate (h) passes on.
TEST(FusedTest, EqualsAtenInDouble) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Case& c : cases()) {
      torch::manual_seed(7);
      const Tensors inputs = c.inputs(at::TensorOptions().dtype(type));
      SCOPED_TRACE(where(c, inputs) + (type == at::kFloat ? " fp32" : " bf16"));
      const Tensors got = results(c.ours, as_leaves(inputs, type));
      const Tensors expected = results(c.reference, as_leaves(inputs, at::kDouble));
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].sizes(), expected[i].sizes());
        const double bound =
            (type == at::kFloat ? 1e-5 : 0x1p-7) * std::max(expected[i].abs().max().item<double>(), 1e-3);
        const double error = (got[i].to(at::kDouble) - expected[i]).abs().max().item<double>();
        EXPECT_LE(error, bound) << "result " << i;
      }
    }
  }
}

TEST(FusedTest, ThreadsDoNotChangeABit) {
  const int before = at::get_num_threads();
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Case& c : {gelu_case(300, 70, Gelu::tanh), norm_case(150, 48), add_norm_case(301, 48), add_case(301, 48),
                          rms_case(150, 48), add_rms_case(301, 48), silu_case(301, 70), rotary_case(3, 200, 3, 1, 16),
                          attention_case(3, 60, 3, 16), entropy_case(150, 300, at::Reduction::Mean, Logits::keep)}) {
      torch::manual_seed(7);
      const Tensors inputs = as_leaves(c.inputs(at::TensorOptions().dtype(type)), type);
      at::set_num_threads(1);
      const Tensors one = results(c.ours, inputs);
      at::set_num_threads(3);
      const Tensors three = results(c.ours, inputs);
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(one[i].equal(three[i])) << c.name << " result " << i;
      }
    }
  }
  at::set_num_threads(before);
}

TEST(FusedTest, EmptyAndStridedInputsAndParametersOfAnotherType) {
  for (const Case& c :
       {gelu_case(0, 16, Gelu::tanh), norm_case(0, 16), add_norm_case(0, 16), add_case(0, 16), rms_case(0, 16),
        add_rms_case(0, 16), silu_case(0, 16), rotary_case(0, 4, 2, 1, 8), linear_case({0, 16}, 8192),
        rotary_case(2, 0, 2, 1, 8), attention_case(0, 8, 2, 4), attention_case(2, 0, 2, 4)}) {
    const Tensors got = results(c.ours, as_leaves(c.inputs(at::kFloat), at::kFloat));
    EXPECT_EQ(got.back().abs().sum().item<double>(), 0) << c.name << ": the gradient of a parameter";
  }
  torch::manual_seed(1);
  const at::Tensor strided = torch::randn({24, 10}).t();
  const at::Tensor bias = torch::randn({24});
  EXPECT_TRUE(bias_gelu(strided, bias, Gelu::tanh).equal(bias_gelu(strided.contiguous(), bias, Gelu::tanh)));
  const at::Tensor x = strided.to(at::kBFloat16);
  const at::Tensor mixed = layer_norm(x, bias, bias, 1e-5);
  EXPECT_EQ(mixed.scalar_type(), at::kBFloat16);
  const auto [h, y] = add_layer_norm(x, strided, {}, bias, bias, 1e-5);
  EXPECT_EQ(h.scalar_type(), at::kFloat) << "a bf16 branch and an fp32 residual";
  EXPECT_EQ(y.scalar_type(), at::kFloat);
}

// Without gradients, where up to 8 rows are one pass over the weight.
TEST(FusedTest, LinearOfFewRowsEqualsAtenInDouble) {
  const c10::InferenceMode inference;
  torch::manual_seed(7);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (int64_t rows = 1; rows <= 9; ++rows) {
      for (const auto& [columns, outputs] : {std::pair<int64_t, int64_t>{1, 1}, {16, 3}, {77, 5}, {300, 70}}) {
        SCOPED_TRACE(concat(rows, " rows of ", columns, ", ", outputs, " outputs, ", type));
        const at::Tensor x = torch::randn({rows, columns}, type), weight = torch::randn({outputs, columns}, type);
        for (const at::Tensor& bias : {at::Tensor(), torch::randn({outputs}, type)}) {
          const at::Tensor y = fused::linear(x.unsqueeze(1), weight, bias).squeeze(1);
          ASSERT_EQ(y.scalar_type(), type);
          const auto in_double = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
          const at::Tensor expected =
              at::linear(in_double(x), in_double(weight),
                         bias.defined() ? std::optional<at::Tensor>(in_double(bias)) : std::nullopt);
          const double most = std::max(expected.abs().max().item<double>(), 1.0);
          EXPECT_LE((in_double(y) - expected).abs().max().item<double>(), (type == at::kFloat ? 1e-5 : 0x1p-8) * most);
          if (rows <= 8) { // no row depends on another one
            EXPECT_TRUE(y.narrow(0, rows - 1, 1).equal(fused::linear(x.narrow(0, rows - 1, 1), weight, bias)));
          }
        }
      }
    }
  }
}

// The same functions where there are no passes: double precision, and types that have none.
TEST(FusedTest, AtensOperationsOfLlamaMeanTheSame) {
  for (const Case& c : {rms_case(7, 20), add_rms_case(7, 20), silu_case(7, 20), rotary_case(2, 7, 4, 2, 10)}) {
    torch::manual_seed(7);
    const Tensors inputs = c.inputs(at::kDouble);
    const Tensors got = results(c.ours, as_leaves(inputs, at::kDouble));
    const Tensors expected = results(c.reference, as_leaves(inputs, at::kDouble));
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), 1e-6) << c.name << " result " << i;
    }
  }
}

// The weight multiplies what is rounded already, and keeps the result's type.
TEST(FusedTest, RmsNormRoundsAsTransformersDoes) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({30, 77}).to(at::kBFloat16), weight = torch::randn({77}).to(at::kBFloat16);
  const at::Tensor floats = x.to(at::kFloat);
  const at::Tensor normal = (floats * at::rsqrt(floats.square().mean(-1, /*keepdim=*/true) + 1e-5)).to(at::kBFloat16);
  const at::Tensor y = rms_norm(x, weight, 1e-5);
  EXPECT_LT(y.ne(weight * normal).sum().item<int64_t>(), 5) << "but for the order of a sum";
  EXPECT_EQ(rms_norm(x, weight.to(at::kFloat), 1e-5).scalar_type(), at::kBFloat16);
}

TEST(FusedTest, ARotationCanBeDifferentiatedTwice) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({1, 2, 3, 8}).requires_grad_();
  const at::Tensor angle = angles(3, 4);
  const auto [q, k] = rotate(x, x, angle.cos(), angle.sin());
  const at::Tensor first = torch::autograd::grad({(q * q + k).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
  const at::Tensor second = torch::autograd::grad({first.square().sum()}, {x})[0];
  EXPECT_TRUE(second.allclose(8 * x + 4 * torch::autograd::grad({k.sum()}, {x})[0], 1e-5, 1e-5))
      << "the square of a rotation is that of x";
}

TEST(FusedTest, FrozenParametersGetNothingAndDoubleTakesAten) {
  const at::Tensor x = torch::randn({6, 20}).requires_grad_();
  const at::Tensor frozen = torch::randn({20});
  bias_gelu(x, frozen, Gelu::tanh).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(frozen.grad().defined());
  const at::Tensor d = torch::randn({6, 20}, at::kDouble).requires_grad_();
  const at::Tensor y = bias_gelu(d, frozen.to(at::kDouble), Gelu::tanh);
  EXPECT_EQ(y.scalar_type(), at::kDouble);
  const at::Tensor first = torch::autograd::grad({y.sum()}, {d}, {}, true, /*create_graph=*/true)[0];
  EXPECT_TRUE(first.requires_grad()) << "ATen's can be differentiated twice";
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(bias_gelu(x, frozen, Gelu::tanh).requires_grad());
}

TEST(FusedTest, BackwardOfBackwardIsRefused) {
  const at::Tensor x = torch::randn({6, 20}).requires_grad_();
  try {
    torch::autograd::grad({bias_gelu(x, {}, Gelu::tanh).sum()}, {x}, {}, true, /*create_graph=*/true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cannot be differentiated twice"));
  }
}

TEST(FusedTest, OverwrittenLogitsAreNotUsedTwice) {
  const at::Tensor x = torch::randn({6, 20}).requires_grad_();
  const at::Tensor target = torch::arange(6);
  const at::Tensor logits = x * 1;
  const at::Tensor kept = cross_entropy(logits, target, at::Reduction::Mean);
  kept.backward({}, /*keep_graph=*/true);
  kept.backward();
  EXPECT_TRUE(logits.equal(x));
  const at::Tensor loss = cross_entropy(logits, target, at::Reduction::Mean, -100, Logits::overwrite);
  loss.backward({}, /*keep_graph=*/true);
  EXPECT_TRUE((x.grad() / 3).allclose(logits, 1e-5, 1e-8))
      << "three equal gradients so far, and the logits are one of them";
  EXPECT_THROW(loss.backward(), Error);
}

TEST(FusedTest, RecomputedAndUnderAutocast) {
  torch::manual_seed(3);
  const at::Tensor weight = torch::randn({48, 16}).mul(0.25).requires_grad_();
  const at::Tensor bias = torch::randn({48}).requires_grad_();
  const auto f = [&](const at::Tensor& x) { return causal_attention(at::linear(x, weight), bias, 2); };
  const at::Tensor x = torch::randn({2, 9, 16}).requires_grad_();
  f(x).square().sum().backward();
  const at::Tensor plain = x.grad().clone(), plain_bias = bias.grad().clone();
  x.mutable_grad().reset();
  bias.mutable_grad().reset();
  recompute::call(f, x).square().sum().backward();
  EXPECT_TRUE(x.grad().equal(plain));
  EXPECT_TRUE(bias.grad().equal(plain_bias));

  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor half = f(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(half.scalar_type(), at::kBFloat16);
  bias.mutable_grad().reset();
  half.to(at::kFloat).square().sum().backward();
  EXPECT_EQ(bias.grad().scalar_type(), at::kFloat);
  EXPECT_LT((bias.grad() - plain_bias).norm().item<double>(), 0.03 * plain_bias.norm().item<double>());
}

TEST(FusedTest, WrongShapesAreNamed) {
  const auto message = [](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  };
  const at::Tensor x = torch::randn({4, 10});
  EXPECT_THAT(message([&] { bias_gelu(x, torch::zeros({9}), Gelu::tanh); }), testing::HasSubstr("[9]"));
  EXPECT_THAT(message([&] { add_bias(x, torch::zeros({4, 9}), torch::zeros({10})); }), testing::HasSubstr("[4, 9]"));
  EXPECT_THAT(message([&] { causal_attention(torch::zeros({1, 2, 10}), {}, 2); }), testing::HasSubstr("2 heads"));
  EXPECT_THAT(message([&] { rms_norm(x, torch::zeros({9}), 1e-5); }), testing::HasSubstr("[9]"));
  EXPECT_THAT(message([&] { add_rms_norm(x, torch::zeros({4, 9}), torch::zeros({10}), 1e-5); }),
              testing::HasSubstr("[4, 9]"));
  EXPECT_THAT(message([&] { gated_silu(x, torch::zeros({4, 9})); }), testing::HasSubstr("[4, 9]"));
  const at::Tensor heads = torch::zeros({1, 2, 4, 6});
  EXPECT_THAT(message([&] { rotate(heads, heads, torch::zeros({5, 3}), torch::zeros({5, 3})); }),
              testing::HasSubstr("[5, 3]"));
  const at::Tensor target = torch::tensor({0, 1, 10, 2}, at::kLong);
  EXPECT_THAT(message([&] { cross_entropy(x, target, at::Reduction::Mean); }),
              testing::HasSubstr("target 10 of row 2 is outside [0, 10)"));
  EXPECT_THAT(message([&] { cross_entropy(x, target.to(at::kInt), at::Reduction::Mean); }),
              testing::HasSubstr("int64"));
}

} // namespace
} // namespace trireme::fused
