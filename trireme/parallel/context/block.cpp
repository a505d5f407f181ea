#include <trireme/parallel/context/block.h>

#include <trireme/fused/fused.h>
#include <trireme/parallel/context/aten_block.h>
#include <trireme/parallel/context/block_form.h>
#include <trireme/parallel/context/options.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace trireme::context {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double scale_of(const Block& block) {
  return 1 / std::sqrt(static_cast<double>(block.q.size(3)));
}

fused::AttentionBlock ours(const Block& block) {
  return {block.q, block.k, block.v, block.causal, block.window};
}

BlockForm form_of(const Block& block) {
  return block_form({.device = block.q.device().type(),
                     .type = block.q.scalar_type(),
                     .head_size = block.q.size(3),
                     .groups = block.q.size(1) / block.k.size(1),
                     .key_padding = block.key_padding.defined(),
                     .window = block.window > 0,
                     .dropout = block.dropout > 0,
                     .ours = fused::usable(ours(block)),
                     .flash_enabled = at::globalContext().userEnabledFlashSDP(),
                     .choice = block.q.is_cuda() ? aten_choice(block) : at::SDPBackend::math});
}

/// The kernels need a last stride of 1.
at::Tensor unit_stride(const at::Tensor& x) {
  return x.stride(-1) == 1 ? x : x.contiguous();
}

/// The fallback with matrix products: a range of queries at a time.
class Plain {
 public:
  explicit Plain(const Block& block)
      : block_(block),
        type_(type_of_sums(block.q)),
        keys_(block.k.to(type_)),
        values_(block.v.to(type_)),
        scale_(scale_of(block)) {
    rows_ = queries_at_once(block.q.size(0) * block.q.size(1) * block.k.size(2), block.q.size(2));
    if (block.dropout > 0) {
      const at::Generator& known = at::globalContext().defaultGenerator(block.q.device());
      generator_ = known.clone();
      generator_.set_current_seed(block.seed);
    }
  }

  /// Queries [begin, end), and the number of keys that they may see.
  struct QueryRange {
    int64_t begin, end, seen;
    at::Tensor q, k, v;
    at::Tensor scores;
    at::Tensor kept; ///< factor of each weight; undefined without dropout
  };

  template <class F>
  void each(const F& f) {
    const int64_t count = block_.q.size(2);
    for (int64_t begin = 0; begin < count; begin += rows_) {
      const int64_t end = std::min(count, begin + rows_);
      QueryRange piece{.begin = begin,
                       .end = end,
                       .seen = block_.causal ? end : block_.k.size(2),
                       .q = {},
                       .k = {},
                       .v = {},
                       .scores = {},
                       .kept = {}};
      piece.q = rows(block_.q, piece).to(type_);
      piece.k = keys_.narrow(2, 0, piece.seen);
      piece.v = values_.narrow(2, 0, piece.seen);
      piece.scores = at::matmul(piece.q, piece.k.transpose(2, 3)).mul_(scale_);
      if (block_.causal) {
        const at::TensorOptions places = block_.q.options().dtype(at::kLong);
        const at::Tensor keys = at::arange(piece.seen, places), queries = at::arange(begin, end, places).unsqueeze(1);
        piece.scores.masked_fill_(keys > queries, kNever);
        if (block_.window > 0) {
          piece.scores.masked_fill_(keys <= queries - block_.window, kNever);
        }
      }
      if (block_.key_padding.defined()) {
        piece.scores.masked_fill_(block_.key_padding.logical_not().view({block_.k.size(0), 1, 1, -1}), kNever);
      }
      if (block_.dropout > 0) {
        piece.kept = at::rand(piece.scores.sizes(), generator_, piece.scores.options())
                         .ge_(block_.dropout)
                         .mul_(block_.dropout < 1 ? 1 / (1 - block_.dropout) : 0);
      }
      f(piece);
    }
  }

  static at::Tensor rows(const at::Tensor& x, const QueryRange& piece) {
    return x.narrow(2, piece.begin, piece.end - piece.begin);
  }
  /// Overwrites the scores with the softmax's weights.
  static at::Tensor weights(const QueryRange& piece, const at::Tensor& lse) {
    return piece.scores.sub_(lse.masked_fill(lse == kNever, 0).unsqueeze(-1)).exp_();
  }

  BlockResult forward() {
    std::vector<int64_t> shape = block_.q.sizes().vec();
    BlockResult result{at::empty(shape, block_.q.options().dtype(type_)), {}};
    shape.pop_back();
    result.lse = at::empty(shape, block_.q.options().dtype(type_));
    each([&](const QueryRange& piece) {
      const at::Tensor lse = at::logsumexp(piece.scores, {-1});
      at::Tensor p = weights(piece, lse);
      if (piece.kept.defined()) {
        p.mul_(piece.kept);
      }
      rows(result.lse, piece).copy_(lse);
      rows(result.out, piece).copy_(at::matmul(p, piece.v));
    });
    return result;
  }

  BlockGradients backward(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse) {
    BlockGradients grads{at::empty(block_.q.sizes(), block_.q.options().dtype(type_)), at::zeros_like(keys_),
                         at::zeros_like(values_)};
    each([&](const QueryRange& piece) {
      const at::Tensor d = rows(dout, piece).to(type_);
      const at::Tensor delta = (d * rows(out, piece)).sum(-1, /*keepdim=*/true);
      const at::Tensor p = weights(piece, rows(lse, piece));
      at::Tensor dp = at::matmul(d, piece.v.transpose(2, 3));
      if (piece.kept.defined()) {
        dp.mul_(piece.kept);
        grads.v.narrow(2, 0, piece.seen).add_(at::matmul((p * piece.kept).transpose(2, 3), d));
      } else {
        grads.v.narrow(2, 0, piece.seen).add_(at::matmul(p.transpose(2, 3), d));
      }
      const at::Tensor ds = dp.sub_(delta).mul_(p).mul_(scale_);
      rows(grads.q, piece).copy_(at::matmul(ds, piece.k));
      grads.k.narrow(2, 0, piece.seen).add_(at::matmul(ds.transpose(2, 3), piece.q));
    });
    return grads;
  }

 private:
  const Block& block_;
  at::ScalarType type_;
  at::Tensor keys_, values_;
  double scale_;
  int64_t rows_ = 1;
  at::Generator generator_;
};

BlockResult our_forward(const Block& block) {
  auto [out, lse] = fused::attention_block(ours(block));
  return {out, lse};
}

BlockGradients our_backward(const Block& block, const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse) {
  auto [q, k, v] = fused::attention_block_backward(ours(block), dout, lse, (dout.to(at::kFloat) * out).sum(-1));
  return {q, k, v};
}

BlockResult forward_by(BlockForm form, const Block& block) {
  switch (form) {
    case BlockForm::ours:
      return our_forward(block);
    case BlockForm::plain:
      return Plain(block).forward();
    default:
      return aten_forward(form, block);
  }
}

BlockGradients backward_by(BlockForm form, const Block& block, const at::Tensor& dout, const at::Tensor& out,
                           const at::Tensor& lse) {
  switch (form) {
    case BlockForm::ours:
      return our_backward(block, dout, out, lse);
    case BlockForm::plain:
      return Plain(block).backward(dout, out, lse);
    default:
      return aten_backward(form, block, dout, out, lse);
  }
}

/// Heads of `x` that do not share keys: head `index` of each group of `count`.
at::Tensor heads_of(const at::Tensor& x, int64_t index, int64_t count) {
  return x.unflatten(1, {x.size(1) / count, count}).select(2, index);
}

Block member_of_groups(const Block& block, int64_t index, int64_t count) {
  Block member = block;
  member.q = heads_of(block.q, index, count);
  member.seed += static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u;
  return member;
}

Block prepared(const Block& block) {
  Block ready = block;
  ready.q = unit_stride(block.q);
  ready.k = unit_stride(block.k);
  ready.v = unit_stride(block.v);
  return ready;
}

} // namespace

at::ScalarType type_of_sums(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void merge(const at::Tensor& out, const at::Tensor& lse, const BlockResult& block, bool may_be_empty) {
  at::Tensor weight = at::sigmoid(block.lse - lse);
  if (may_be_empty) {
    weight.nan_to_num_(0); // neither has a key
  }
  out.lerp_(block.out.to(out.scalar_type()), weight.unsqueeze(-1));
  lse.copy_(at::logaddexp(lse, block.lse));
}

// Grouped queries: some kernels read each group's keys; for the other forms, one call per member of a group, so that
// keys are not repeated.

BlockResult forward(const Block& any) {
  const Block block = prepared(any);
  const int64_t count = block.q.size(1) / block.k.size(1);
  const BlockForm form = form_of(block);
  if (count == 1 || reads_groups(form)) {
    return forward_by(form, block);
  }
  std::vector<at::Tensor> out, lse;
  for (int64_t index = 0; index < count; ++index) {
    const Block member = member_of_groups(block, index, count);
    const BlockResult result = forward_by(form_of(member), member);
    out.push_back(result.out);
    lse.push_back(result.lse);
  }
  return {at::stack(out, 2).flatten(1, 2), at::stack(lse, 2).flatten(1, 2)};
}

BlockGradients backward(const Block& any, const at::Tensor& any_dout, const at::Tensor& out, const at::Tensor& lse) {
  const Block block = prepared(any);
  const at::Tensor dout = unit_stride(any_dout);
  const int64_t count = block.q.size(1) / block.k.size(1);
  const BlockForm form = form_of(block);
  if (count == 1 || reads_groups(form)) {
    return backward_by(form, block, dout, out, lse);
  }
  std::vector<at::Tensor> dq;
  BlockGradients sum;
  for (int64_t index = 0; index < count; ++index) {
    const Block member = member_of_groups(block, index, count);
    const BlockGradients grads = backward_by(form_of(member), member, heads_of(dout, index, count),
                                             heads_of(out, index, count), heads_of(lse, index, count));
    dq.push_back(grads.q);
    if (index == 0) {
      sum.k = grads.k.to(type_of_sums(block.k));
      sum.v = grads.v.to(type_of_sums(block.v));
    } else {
      sum.k.add_(grads.k);
      sum.v.add_(grads.v);
    }
  }
  sum.q = at::stack(dq, 2).flatten(1, 2);
  return sum;
}

} // namespace trireme::context
