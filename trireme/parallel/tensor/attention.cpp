#include <trireme/parallel/tensor/attention.h>

#include <trireme/base/error.h>
#include <trireme/parallel/context/attention.h>
#include <trireme/parallel/tensor/exchange.h>
#include <trireme/parallel/tensor/linear.h>
#include <trireme/parallel/tensor/own_random.h>

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace trireme::tensor {
namespace {

/// Number of ranks that share a head of keys and values; 1: each has its own.
int64_t sharers_of(const ParallelAttentionOptions& options, const Ranks& ranks) {
  return options.kv_heads < ranks.group.size() ? ranks.group.size() / options.kv_heads : 1;
}

/// `given` with defaults filled in for its zeros.
ParallelAttentionOptions checked_attention(const ParallelAttentionOptions& given, const Ranks& ranks) {
  const auto refuse = [](const std::string& what, const char* next) {
    throw InputError("tensor parallel", concat("attention: ", what), next);
  };
  ParallelAttentionOptions options = given;
  if (options.kv_heads == 0) {
    options.kv_heads = options.heads;
  }
  if (options.hidden < 1 || options.heads < 1 || options.kv_heads < 1 || options.head_size < 0) {
    refuse(concat("hidden ", options.hidden, ", heads ", options.heads, ", kv_heads ", options.kv_heads,
                  " and head_size ", options.head_size, " are not all positive"),
           "Give hidden and heads.");
  }
  if (options.head_size == 0) {
    if (options.hidden % options.heads != 0) {
      refuse(concat(options.heads, " heads do not divide a hidden size of ", options.hidden),
             "Choose numbers that divide, or a head_size.");
    }
    options.head_size = options.hidden / options.heads;
  }
  const int64_t N = ranks.group.size();
  if (options.heads % options.kv_heads != 0) {
    refuse(concat(options.kv_heads, " heads of keys and values do not divide ", options.heads, " heads of queries"),
           "Choose numbers that divide.");
  }
  if (options.heads % N != 0) {
    refuse(concat("the ", N, " tensor-parallel ranks must divide the ", options.heads, " heads"),
           "Choose parallel.tensor so that it divides the heads.");
  }
  if (options.kv_heads % N != 0 && N % options.kv_heads != 0) {
    refuse(concat("the ", N, " tensor-parallel ranks must divide the ", options.kv_heads,
                  " heads of keys and values, or be a multiple of them"),
           "Choose another parallel.tensor.");
  }
  if (const int64_t sharers = sharers_of(options, ranks); options.head_size % sharers != 0) {
    refuse(concat("each head of keys and values belongs to ", sharers,
                  " tensor-parallel ranks, which do not divide its ", options.head_size, " features"),
           "Choose another parallel.tensor.");
  }
  if (!(options.dropout >= 0 && options.dropout <= 1)) {
    refuse(concat("a dropout of ", options.dropout, " is not a probability"), "Choose one from 0 to 1.");
  }
  if (options.window < 0 || (options.window > 0 && !options.causal)) {
    refuse(concat("a window of ", options.window, " tokens", options.causal ? "" : " without causal"),
           "Choose a window of at least 1 token for causal attention, or 0.");
  }
  return options;
}

/// Keys and values of the head that `sharers` neighbouring ranks share, gathered from each rank's part of the features,
/// [B, T, D / sharers] -> [2, B, 1, T, D].
at::Tensor shared_head(const at::Tensor& k, const at::Tensor& v, int64_t sharers, const comm::Group& ranks) {
  const at::Tensor all = gather_parts(at::stack({k, v}).unsqueeze(0), ranks, 0); // [N, 2, B, T, D / sharers]
  const at::Tensor mine = all.narrow(0, ranks.rank() / sharers * sharers, sharers);
  return mine.permute({1, 2, 3, 0, 4}).flatten(3, 4).unsqueeze(2);
}

} // namespace

ParallelAttentionImpl::ParallelAttentionImpl(const ParallelAttentionOptions& given, const Ranks& ranks)
    : options_(checked_attention(given, ranks)), ranks_(ranks) {
  const int64_t queries = options_.heads * options_.head_size;
  const int64_t keys = options_.kv_heads * options_.head_size;
  q_proj = register_module("q_proj", ColumnParallelLinear(options_.hidden, queries, ranks, options_.bias));
  k_proj = register_module("k_proj", ColumnParallelLinear(options_.hidden, keys, ranks, options_.bias));
  v_proj = register_module("v_proj", ColumnParallelLinear(options_.hidden, keys, ranks, options_.bias));
  o_proj = register_module("o_proj", RowParallelLinear(queries, options_.hidden, ranks, options_.output_bias));
}

ParallelAttentionImpl::Heads ParallelAttentionImpl::project(const at::Tensor& x) {
  const std::vector<at::Tensor> biases =
      options_.bias ? std::vector<at::Tensor>{q_proj->bias, k_proj->bias, v_proj->bias} : std::vector<at::Tensor>();
  std::vector<at::Tensor> qkv = column_linears(x, {q_proj->weight, k_proj->weight, v_proj->weight}, biases, ranks_,
                                               {q_proj->fp8(), k_proj->fp8(), v_proj->fp8()});
  qkv = {q_proj->adapted(qkv[0], x), k_proj->adapted(qkv[1], x), v_proj->adapted(qkv[2], x)};
  const auto heads_of = [&](const at::Tensor& y) {
    return y.unflatten(-1, {y.size(-1) / options_.head_size, options_.head_size}).transpose(1, 2);
  };
  if (const int64_t sharers = sharers_of(options_, ranks_); sharers > 1) {
    const at::Tensor both = shared_head(qkv[1], qkv[2], sharers, ranks_.group);
    return {heads_of(qkv[0]), both[0], both[1]};
  }
  return {heads_of(qkv[0]), heads_of(qkv[1]), heads_of(qkv[2])};
}

at::Tensor ParallelAttentionImpl::mix(const Heads& heads, const at::Tensor& key_padding) {
  const double dropout = is_training() ? options_.dropout : 0;
  const OwnRandom own(ranks_.group.rank(), dropout > 0 ? ranks_.group.size() : 1,
                      heads.q.device()); // masks differ between heads
  const at::ScalarType type = heads.v.scalar_type();
  const at::Tensor y =
      context::attention(heads.q.to(type), heads.k.to(type), heads.v, options_.context,
                         {options_.context_kind, options_.causal, dropout, options_.window}, key_padding);
  return y.transpose(1, 2).flatten(2);
}

at::Tensor ParallelAttentionImpl::forward(const at::Tensor& x, const at::Tensor& key_padding) {
  return o_proj->forward(mix(project(x), key_padding));
}

} // namespace trireme::tensor
