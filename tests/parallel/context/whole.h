#pragma once

#include <trireme/parallel/context/attention.h>
#include <trireme/parallel/context/sequence.h>

#include <ATen/ATen.h>
#include <torch/utils.h>

#include <gtest/gtest.h>

#include <string>

// Attention over the whole sequence in one process, to compare with.
namespace trireme::context {

struct Case {
  Kind kind = Kind::ring;
  bool causal = true;
  int64_t batch = 3;
  int64_t heads = 12;
  int64_t kv_heads = 12;
  int64_t chunk = 5; ///< the sequence has 2 N of these
  int64_t head_size = 8;
  bool padding = false;
  at::ScalarType type = at::kFloat;
  int64_t window = 0;

  std::string text() const {
    return concat(kind == Kind::ring ? "ring" : "ulysses", causal ? " causal" : "", padding ? " padding" : "", " B",
                  batch, " A", heads, " K", kv_heads, " chunk ", chunk, " D", head_size, " window ", window, " ",
                  c10::toString(type));
  }
};

/// q, k, v [B, *, T, D], the gradient of the result, and which tokens there are.
struct Inputs {
  at::Tensor q, k, v, dout, padding;
};

inline Inputs make_inputs(const Case& c, int ranks, int64_t seed = 1) {
  torch::manual_seed(seed);
  const int64_t T = 2 * ranks * c.chunk;
  const auto random = [&](int64_t heads) {
    return at::randn({c.batch, heads, T, c.head_size}, at::kDouble).to(c.type);
  };
  Inputs in{random(c.heads), random(c.kv_heads), random(c.kv_heads), random(c.heads), {}};
  if (c.padding) { // the last sample has tokens on the first rank alone, where they are in order
    in.padding =
        at::arange(T).unsqueeze(0) < at::linspace(static_cast<double>(T), 2, c.batch).to(at::kLong).unsqueeze(1);
  }
  return in;
}

struct Results {
  at::Tensor out, dq, dk, dv;
};

/// PyTorch's attention over the whole, in double.
inline Results whole_attention(const Inputs& in, bool causal, int64_t window = 0) {
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).detach().requires_grad_(); };
  const at::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  std::optional<at::Tensor> mask =
      in.padding.defined() ? std::optional(in.padding.unsqueeze(1).unsqueeze(2)) : std::nullopt;
  if (window > 0) {
    mask = at::ones({q.size(2), q.size(2)}, at::kBool).tril().triu(1 - window);
  }
  const at::Tensor out =
      at::scaled_dot_product_attention(q, k, v, mask, 0.0, causal && window == 0, std::nullopt, q.size(1) != k.size(1));
  out.backward(in.dout.to(at::kDouble));
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

/// This rank's part, as a leaf.
inline at::Tensor part(const at::Tensor& x, const comm::Group& ranks, Kind kind, bool gradient) {
  const at::Tensor mine = take_tokens(x, ranks, kind, x.dim() == 2 ? 1 : 2).detach().clone();
  return gradient ? mine.requires_grad_() : mine;
}

inline Results shared_attention(const Inputs& in, const Case& c, const comm::Group& ranks, double dropout = 0) {
  const at::Tensor q = part(in.q, ranks, c.kind, true), k = part(in.k, ranks, c.kind, true),
                   v = part(in.v, ranks, c.kind, true);
  const at::Tensor padding = in.padding.defined() ? part(in.padding, ranks, c.kind, false) : at::Tensor();
  const at::Tensor out =
      attention(q, k, v, ranks, {.kind = c.kind, .causal = c.causal, .dropout = dropout, .window = c.window}, padding);
  out.backward(part(in.dout, ranks, c.kind, false));
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

inline void expect_near(const at::Tensor& found, const at::Tensor& whole, const comm::Group& ranks, const Case& c,
                        double tolerance, const char* what) {
  const at::Tensor wanted = take_tokens(whole, ranks, c.kind, 2);
  ASSERT_EQ(found.sizes(), wanted.sizes()) << what << " of " << c.text();
  EXPECT_EQ(found.scalar_type(), c.type) << what << " of " << c.text();
  const double scale = std::max(1.0, wanted.abs().max().item<double>());
  const double off = (found.to(at::kDouble) - wanted).abs().max().item<double>();
  EXPECT_LE(off, tolerance * scale) << what << " of " << c.text(); // NaN is not <=
}

inline void expect_the_whole(const comm::Group& ranks, const Case& c, double tolerance) {
  const Inputs in = make_inputs(c, ranks.size());
  const Results wanted = whole_attention(in, c.causal, c.window);
  const Results found = shared_attention(in, c, ranks);
  expect_near(found.out, wanted.out, ranks, c, tolerance, "the result");
  expect_near(found.dq, wanted.dq, ranks, c, tolerance, "dq");
  expect_near(found.dk, wanted.dk, ranks, c, tolerance, "dk");
  expect_near(found.dv, wanted.dv, ranks, c, tolerance, "dv");
}

} // namespace trireme::context
