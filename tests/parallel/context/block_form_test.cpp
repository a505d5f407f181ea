// The form of every block, as a table; and the calls of CUDA's kernels, with kernels of the CPU in their place.
#include <trireme/parallel/context/block_form.h>

#include <trireme/parallel/context/aten_block.h>

#include <ATen/ATen.h>
#include <torch/library.h>
#include <torch/utils.h>

#include <gmock/gmock.h>

#include <cmath>

namespace trireme::context {
namespace {

using at::SDPBackend;

/// The form on CUDA without padding, window and dropout, by libtorch's choice and the size of a head.
BlockForm written_form(SDPBackend choice, at::ScalarType type, int64_t head_size, bool flash_enabled) {
  if ((type != at::kHalf && type != at::kBFloat16) || head_size == 0 || head_size % 8 != 0) {
    return BlockForm::plain;
  }
  if (choice == SDPBackend::cudnn_attention && head_size > 128) {
    return flash_enabled ? BlockForm::flash : BlockForm::plain;
  }
  return choice == SDPBackend::cudnn_attention   ? BlockForm::cudnn
         : choice == SDPBackend::flash_attention ? BlockForm::flash
                                                 : BlockForm::plain;
}

TEST(BlockFormTest, OnCudaFollowsLibtorchsChoice) {
  int fused = 0;
  for (const SDPBackend choice :
       {SDPBackend::error, SDPBackend::math, SDPBackend::flash_attention, SDPBackend::efficient_attention,
        SDPBackend::cudnn_attention, SDPBackend::overrideable}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const int64_t head_size : {0, 8, 63, 64, 128, 136, 192, 256}) {
        for (const int bits : {0, 1, 2, 3, 4, 5, 6, 7, 8, 16}) {
          const BlockTraits block{.device = c10::kCUDA,
                                  .type = type,
                                  .head_size = head_size,
                                  .groups = (bits & 16) != 0 ? 4 : 1,
                                  .key_padding = (bits & 1) != 0,
                                  .window = (bits & 2) != 0,
                                  .dropout = (bits & 4) != 0,
                                  .flash_enabled = (bits & 8) == 0,
                                  .choice = choice};
          const BlockForm expected =
              (bits & 7) != 0 ? BlockForm::plain : written_form(choice, type, head_size, block.flash_enabled);
          EXPECT_EQ(block_form(block), expected)
              << static_cast<int>(choice) << ' ' << c10::toString(type) << ' ' << head_size << ' ' << bits;
          fused += static_cast<int>(expected != BlockForm::plain);
        }
      }
    }
  }
  EXPECT_EQ(fused, 2 * (3 * 3 + 3 * 2 + 6 * 3)) << "half types: cuDNN to 128, flash above it, flash's own choice";
}

TEST(BlockFormTest, OnTheCpu) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    BlockTraits block{.type = type, .head_size = 6};
    EXPECT_EQ(block_form(block), BlockForm::flash_cpu);
    block.key_padding = true;
    EXPECT_EQ(block_form(block), BlockForm::flash_cpu);
    block.ours = true;
    EXPECT_EQ(block_form(block), BlockForm::flash_cpu) << "ours has no padding";
    block.key_padding = false;
    EXPECT_EQ(block_form(block), BlockForm::ours);
    block.window = true;
    EXPECT_EQ(block_form(block), BlockForm::ours);
    block.ours = false;
    EXPECT_EQ(block_form(block), BlockForm::plain);
    block.window = false;
    block.dropout = true;
    EXPECT_EQ(block_form(block), BlockForm::plain);
    block.dropout = false;
    block.flash_enabled = false;
    EXPECT_EQ(block_form(block), BlockForm::plain);
    block.flash_enabled = true;
    block.device = c10::kPrivateUse1;
    EXPECT_EQ(block_form(block), BlockForm::plain);
  }
}

TEST(BlockFormTest, OneProcessAttendsByAten) {
  for (const SDPBackend choice :
       {SDPBackend::math, SDPBackend::flash_attention, SDPBackend::efficient_attention, SDPBackend::cudnn_attention}) {
    const bool fused = choice != SDPBackend::math;
    EXPECT_EQ(attends_by_aten({.device = c10::kCUDA, .choice = choice}), fused);
    EXPECT_EQ(attends_by_aten({.device = c10::kCUDA, .groups = 4, .choice = choice}), fused);
    EXPECT_EQ(attends_by_aten({.device = c10::kCUDA, .key_padding = true, .choice = choice}), fused);
    EXPECT_EQ(attends_by_aten({.device = c10::kCPU, .choice = choice}), fused);
    EXPECT_FALSE(attends_by_aten({.device = c10::kCPU, .groups = 4, .choice = choice})) << "keys would be repeated";
    EXPECT_FALSE(attends_by_aten({.device = c10::kCPU, .ours = true, .choice = choice}));
    EXPECT_EQ(attends_by_aten({.device = c10::kCPU, .key_padding = true, .ours = true, .choice = choice}), fused);
    EXPECT_FALSE(attends_by_aten({.device = c10::kCUDA, .window = true, .choice = choice}));
    EXPECT_FALSE(attends_by_aten({.device = c10::kCUDA, .dropout = true, .choice = choice}));
    EXPECT_FALSE(attends_by_aten({.device = c10::kPrivateUse1, .choice = choice}));
  }
}

/// What CUDA's kernels compute, grouped queries included, in fp64.
struct Sums {
  at::Tensor scores, weights, k, v;
};
Sums sums_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, const at::Tensor& lse) {
  const int64_t groups = q.size(1) / k.size(1);
  Sums sums{.scores = {},
            .weights = {},
            .k = k.to(at::kDouble).repeat_interleave(groups, 1),
            .v = v.to(at::kDouble).repeat_interleave(groups, 1)};
  sums.scores = at::matmul(q.to(at::kDouble), sums.k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  if (causal) {
    sums.scores.masked_fill_(at::ones({q.size(2), k.size(2)}, at::kBool).triu(1), -INFINITY);
  }
  if (lse.defined()) {
    sums.weights = (sums.scores - lse.to(at::kDouble).unsqueeze(-1)).exp();
  }
  return sums;
}

using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                           at::Tensor, at::Tensor>;
Forward fake_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout, bool causal) {
  EXPECT_EQ(dropout, 0);
  const Sums sums = sums_of(q, k, v, causal, {});
  const at::Tensor out = at::empty_like(q).copy_(at::matmul(at::softmax(sums.scores, -1), sums.v));
  return {out, at::logsumexp(sums.scores, {-1}).to(at::kFloat), {}, {}, q.size(2), k.size(2), {}, {}, {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fake_backward(const at::Tensor& dout, const at::Tensor& q,
                                                             const at::Tensor& k, const at::Tensor& v,
                                                             const at::Tensor& out, const at::Tensor& lse,
                                                             const c10::SymInt& most_q, const c10::SymInt& most_k,
                                                             bool causal) {
  EXPECT_EQ(most_q, q.size(2));
  EXPECT_EQ(most_k, k.size(2));
  EXPECT_TRUE(lse.is_contiguous());
  EXPECT_EQ(lse.sizes(), q.sizes().slice(0, 3));
  const Sums sums = sums_of(q, k, v, causal, lse);
  const at::Tensor d = dout.to(at::kDouble);
  const at::Tensor delta = (d * out.to(at::kDouble)).sum(-1, true);
  const at::Tensor ds =
      sums.weights * (at::matmul(d, sums.v.transpose(2, 3)) - delta) / std::sqrt(static_cast<double>(q.size(3)));
  const auto of_groups = [&](const at::Tensor& x, const at::Tensor& like) {
    return x.unflatten(1, {like.size(1), -1}).sum(2).to(like.scalar_type());
  };
  return {at::matmul(ds, sums.k).to(q.scalar_type()), of_groups(at::matmul(ds.transpose(2, 3), q.to(at::kDouble)), k),
          of_groups(at::matmul(sums.weights.transpose(2, 3), d), v)};
}

Forward fake_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias,
                   bool log_sum_exp, double dropout, bool causal, bool, std::optional<double> scale) {
  EXPECT_TRUE(!bias && log_sum_exp && !scale);
  return fake_forward(q, k, v, dropout, causal);
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> fake_cudnn_backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
    const at::Tensor& lse, const at::Tensor& seed, const at::Tensor& offset, const at::Tensor& bias,
    const at::Tensor& q_starts, const at::Tensor& k_starts, c10::SymInt most_q, c10::SymInt most_k, double dropout,
    bool causal, std::optional<double> scale) {
  EXPECT_TRUE(!bias.defined() && !q_starts.defined() && !k_starts.defined() && !scale && dropout == 0);
  EXPECT_TRUE(seed.defined() && offset.defined());
  EXPECT_EQ(out.strides(), at::empty_like(q).strides()) << "ATen keeps graphs by the strides of q, k and v";
  EXPECT_EQ(dout.strides(), out.strides());
  return fake_backward(dout, q, k, v, out, lse, most_q, most_k, causal);
}
Forward fake_flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout, bool causal, bool,
                   std::optional<double> scale) {
  EXPECT_FALSE(scale);
  return fake_forward(q, k, v, dropout, causal);
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> fake_flash_backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
    const at::Tensor& lse, const at::Tensor& q_starts, const at::Tensor& k_starts, c10::SymInt most_q,
    c10::SymInt most_k, double dropout, bool causal, const at::Tensor& seed, const at::Tensor& offset,
    std::optional<double> scale) {
  EXPECT_TRUE(!q_starts.defined() && !k_starts.defined() && !scale && dropout == 0);
  EXPECT_TRUE(seed.defined() && offset.defined());
  return fake_backward(dout, q, k, v, out, lse, most_q, most_k, causal);
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_scaled_dot_product_cudnn_attention", &fake_cudnn);
  library.impl("_scaled_dot_product_cudnn_attention_backward", &fake_cudnn_backward);
  library.impl("_scaled_dot_product_flash_attention", &fake_flash);
  library.impl("_scaled_dot_product_flash_attention_backward", &fake_flash_backward);
}

// Queries [B, T, A, D] in memory against the first and the second half of the keys, merged: out, log sum exp and
// gradients equal those of the forms on the CPU, whose own test compares them with softmax written out.
TEST(BlockFormTest, KernelsOfCudaGetWhatTheyExpect) {
  torch::manual_seed(2);
  for (const BlockForm form : {BlockForm::cudnn, BlockForm::flash}) {
    for (const int64_t kv_heads : {4, 2, 1}) {
      const auto random = [](int64_t heads, int64_t tokens) {
        return at::randn({2, tokens, heads, 8}).to(at::kBFloat16).transpose(1, 2);
      };
      const at::Tensor q = random(4, 5), k = random(kv_heads, 10), v = random(kv_heads, 10),
                       dout = at::randn({2, 4, 5, 8}).to(at::kBFloat16);
      const Block whole{.q = q, .k = k, .v = v};
      const BlockResult expected = forward(whole);
      const auto half = [&](int64_t begin) {
        return Block{.q = q, .k = k.narrow(2, begin, 5), .v = v.narrow(2, begin, 5), .causal = false};
      };
      BlockResult found = aten_forward(form, half(0));
      found.out = found.out.to(at::kFloat);
      merge(found.out, found.lse, aten_forward(form, half(5)), false);
      const auto near = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
        ASSERT_EQ(a.sizes(), b.sizes()) << what;
        EXPECT_LT((a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>(), 3e-2)
            << what << ' ' << static_cast<int>(form) << ' ' << kv_heads;
      };
      near(found.out, expected.out, "out");
      near(found.lse, expected.lse, "lse");
      EXPECT_EQ(found.lse.scalar_type(), at::kFloat);
      const BlockGradients gradients = backward(whole, dout, expected.out, expected.lse);
      const BlockGradients first = aten_backward(form, half(0), dout, found.out, found.lse),
                           second = aten_backward(form, half(5), dout, found.out, found.lse);
      near(first.q + second.q, gradients.q, "dq");
      near(at::cat({first.k, second.k}, 2), gradients.k, "dk");
      near(at::cat({first.v, second.v}, 2), gradients.v, "dv");
    }
  }
}

} // namespace
} // namespace trireme::context
