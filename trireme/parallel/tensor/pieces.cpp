#include <trireme/parallel/tensor/pieces.h>
#include <trireme/parallel/tensor/ranks.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <utility>

namespace trireme::tensor {
namespace {

/// Pieces that are being gathered while one is multiplied.
constexpr size_t kAhead = 2;

/// Tokens [begin, begin + count) of each rank's part of a sample.
struct TokenRange {
  int64_t sample;
  int64_t begin;
  int64_t count;
};

/// Empty if all samples are sent at once. `whole`: sizes of all ranks' tokens, `token_bytes` of one of them.
std::vector<TokenRange> pieces_of(int64_t samples, int64_t tokens, int64_t token_bytes, const comm::Group& ranks,
                                  const PieceSizes& sizes) {
  std::vector<TokenRange> pieces;
  if (tokens * token_bytes < sizes.sample_bytes) {
    return pieces;
  }
  const int64_t mine = tokens / ranks.size();
  const int64_t most = std::clamp<int64_t>(sizes.piece_bytes / (token_bytes * ranks.size()), 1, mine);
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t begin = 0; begin < mine; begin += most) {
      pieces.push_back({sample, begin, std::min(most, mine - begin)});
    }
  }
  return pieces;
}

/// The matrices in a piece of `whole` [B, T, F]: one if all its tokens are neighbours, otherwise one per
/// rank.
std::vector<at::Tensor> matrices_of(const at::Tensor& whole, const TokenRange& piece, int ranks) {
  const at::Tensor sample = whole[piece.sample];
  const int64_t part = sample.size(0) / ranks;
  if (piece.count == part) {
    return {sample};
  }
  std::vector<at::Tensor> matrices;
  for (int rank = 0; rank < ranks; ++rank) {
    matrices.push_back(sample.narrow(0, rank * part + piece.begin, piece.count));
  }
  return matrices;
}

/// The same matrices of a contiguous piece, [tokens of the piece, F].
std::vector<at::Tensor> split_like(const at::Tensor& piece, const std::vector<at::Tensor>& matrices) {
  return piece.chunk(static_cast<int64_t>(matrices.size()), 0);
}

/// [B, T, F] from a tensor with more dims in between.
at::Tensor three_dims(const at::Tensor& x) {
  return x.contiguous().view({x.size(0), -1, x.size(-1)});
}

at::DimVector sizes_like(const at::Tensor& x, int64_t tokens, int64_t features) {
  at::DimVector sizes(x.sizes());
  sizes[kSequenceDim] = tokens;
  sizes.back() = features;
  return sizes;
}

void multiply_into(at::Tensor y, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (bias.defined()) {
    at::addmm_out(y, bias, x, weight);
  } else {
    at::mm_out(y, x, weight);
  }
}

/// Sum over i of x_i W_i.
void sum_products_into(at::Tensor y, const std::vector<at::Tensor>& xs, at::TensorList weights) {
  at::mm_out(y, xs[0], weights[0]);
  for (size_t i = 1; i < xs.size(); ++i) {
    y.addmm_(xs[i], weights[i]);
  }
}

} // namespace

Products multiply_joined(const at::Tensor& x, at::TensorList weights, at::TensorList biases, const comm::Group& ranks,
                         bool wants_whole) {
  const at::ScalarType type = weights[0].scalar_type();
  const at::Tensor mine = three_dims(x);
  const int64_t tokens = mine.size(1) * ranks.size();
  const std::vector<TokenRange> pieces =
      pieces_of(mine.size(0), tokens, mine.size(2) * mine.element_size(), ranks, piece_sizes(mine.is_cpu()));
  Products products;
  std::vector<at::Tensor> ys;
  for (const at::Tensor& weight : weights) {
    products.results.push_back(
        at::empty(sizes_like(x, x.size(kSequenceDim) * ranks.size(), weight.size(1)), mine.options().dtype(type)));
    ys.push_back(products.results.back().view({mine.size(0), tokens, weight.size(1)}));
  }
  const auto multiply = [&](size_t i, at::Tensor y, const at::Tensor& from) {
    multiply_into(std::move(y), from, weights[i], biases.empty() ? at::Tensor() : biases[i]);
  };
  if (pieces.empty()) {
    products.whole = start_join(x, ranks, kSequenceDim).wait();
    const at::Tensor from = three_dims(products.whole).flatten(0, 1).to(type);
    for (size_t i = 0; i < ys.size(); ++i) {
      multiply(i, ys[i].flatten(0, 1), from);
    }
    return products;
  }
  at::Tensor whole;
  if (wants_whole) {
    products.whole = allocate(ranks, sizes_like(x, x.size(kSequenceDim) * ranks.size(), x.size(-1)), x);
    whole = products.whole.view({mine.size(0), tokens, mine.size(2)});
  }
  std::deque<Transfer> gathers;
  const auto start = [&](const TokenRange& piece) {
    const bool in_place = wants_whole && piece.count == mine.size(1);
    const at::Tensor to =
        in_place ? whole[piece.sample] : allocate(ranks, {piece.count * ranks.size(), mine.size(2)}, x);
    const at::Tensor from = mine[piece.sample].narrow(0, piece.begin, piece.count);
    gathers.emplace_back(to,
                         std::vector<comm::Work>{ranks.all_gather(to.view({-1}), from.view({-1}), "parts of a layer")},
                         std::vector<at::Tensor>{from});
  };
  for (size_t n = 0, started = 0; n < pieces.size(); ++n) {
    for (; started < std::min(n + 1 + kAhead, pieces.size()); ++started) {
      start(pieces[started]);
    }
    const at::Tensor gathered = gathers.front().wait();
    gathers.pop_front();
    if (wants_whole && pieces[n].count != mine.size(1)) {
      const std::vector<at::Tensor> to = matrices_of(whole, pieces[n], ranks.size());
      const std::vector<at::Tensor> from = split_like(gathered, to);
      for (size_t k = 0; k < to.size(); ++k) {
        to[k].copy_(from[k]);
      }
    }
    const at::Tensor from = gathered.to(type);
    for (size_t i = 0; i < ys.size(); ++i) {
      const std::vector<at::Tensor> to = matrices_of(ys[i], pieces[n], ranks.size());
      const std::vector<at::Tensor> rows = split_like(from, to);
      for (size_t k = 0; k < to.size(); ++k) {
        multiply(i, to[k], rows[k]);
      }
    }
  }
  return products;
}

Transfer start_multiply_to_part(at::TensorList xs, at::TensorList weights, const comm::Group& ranks) {
  std::vector<at::Tensor> wholes;
  for (const at::Tensor& x : xs) {
    wholes.push_back(three_dims(x));
  }
  const int64_t samples = wholes[0].size(0);
  const int64_t tokens = wholes[0].size(1);
  const int64_t columns = weights[0].size(1);
  const std::vector<TokenRange> pieces =
      pieces_of(samples, tokens, columns * wholes[0].element_size(), ranks, piece_sizes(wholes[0].is_cpu()));
  if (pieces.empty()) {
    const at::Tensor sum = allocate(ranks, sizes_like(xs[0], xs[0].size(kSequenceDim), columns), xs[0]);
    std::vector<at::Tensor> rows;
    for (const at::Tensor& whole : wholes) {
      rows.push_back(whole.flatten(0, 1));
    }
    sum_products_into(sum.view({-1, columns}), rows, weights);
    return start_sum_to_part(sum, ranks, kSequenceDim);
  }
  const at::Tensor mine = allocate(ranks, sizes_like(xs[0], xs[0].size(kSequenceDim) / ranks.size(), columns), xs[0]);
  const at::Tensor to = mine.view({samples, tokens / ranks.size(), columns});
  std::vector<comm::Work> works;
  std::vector<at::Tensor> kept;
  for (const TokenRange& piece : pieces) {
    const at::Tensor sum = allocate(ranks, {piece.count * ranks.size(), columns}, mine);
    std::vector<std::vector<at::Tensor>> from;
    for (const at::Tensor& whole : wholes) {
      from.push_back(matrices_of(whole, piece, ranks.size()));
    }
    const std::vector<at::Tensor> results = split_like(sum, from[0]);
    for (size_t k = 0; k < results.size(); ++k) {
      std::vector<at::Tensor> rows;
      for (const std::vector<at::Tensor>& matrices : from) {
        rows.push_back(matrices[k]);
      }
      sum_products_into(results[k], rows, weights);
    }
    works.push_back(ranks.reduce_scatter(to[piece.sample].narrow(0, piece.begin, piece.count).view({-1}),
                                         sum.view({-1}), comm::ReduceOp::sum, "sum of a layer, in parts"));
    kept.push_back(sum);
  }
  return {mine, std::move(works), std::move(kept)};
}

} // namespace trireme::tensor
