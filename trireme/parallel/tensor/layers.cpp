#include <trireme/parallel/tensor/layers.h>

#include <trireme/base/error.h>
#include <trireme/fused/int8.h>
#include <trireme/parallel/tensor/linear.h>
#include <trireme/parallel/tensor/skip_init.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/nn/options/embedding.h>
#include <torch/nn/options/linear.h>
#include <torch/utils.h>

#include <mutex>

namespace trireme::tensor {
namespace {

int64_t split(const char* what, int64_t size, const Ranks& ranks) {
  if (size < ranks.group.size()) {
    throw InputError(
        "tensor parallel",
        concat("a layer has ", size, ' ', what, ", fewer than the ", ranks.group.size(), " tensor-parallel ranks"),
        "Use fewer tensor ranks (parallel.tensor), or a wider layer.");
  }
  return part_of(size, ranks).size();
}

/// Copies this rank's part of the initial values from the full layer.
template <typename Module>
void take_values(Module& mine, const Module& whole, const std::map<std::string, bucket::Placement>& placements) {
  const torch::NoGradGuard no_grad;
  for (auto& item : mine.named_parameters(/*recurse=*/false)) {
    const at::Tensor values = whole.named_parameters(/*recurse=*/false)[item.key()];
    const auto placed = placements.find(item.key());
    item.value().copy_(placed == placements.end() ? values : box_of(values, placed->second, item.value().sizes()));
  }
}

int64_t columns(int64_t out, const Ranks& ranks, int64_t parts) {
  if (parts < 1 || out % parts != 0) {
    throw InputError("tensor parallel", concat("a layer of ", out, " outputs cannot have ", parts, " equal blocks"));
  }
  return parts * split("outputs", out / parts, ranks);
}

// torch's constructors always draw values. Under SkipInit they draw those of one element, and give_memory() follows.
torch::nn::LinearOptions drawn(const torch::nn::LinearOptions& wanted) {
  return SkipInit::is_on() ? torch::nn::LinearOptions(1, 1).bias(wanted.bias()) : wanted;
}

torch::nn::EmbeddingOptions drawn(const torch::nn::EmbeddingOptions& wanted) {
  return SkipInit::is_on() ? torch::nn::EmbeddingOptions(1, 1) : wanted;
}

void set_size(at::Tensor& parameter, at::IntArrayRef sizes) {
  parameter.set_data(torch::empty(sizes, parameter.options().requires_grad(false)));
}

void give_memory(torch::nn::LinearImpl& linear, const torch::nn::LinearOptions& wanted) {
  linear.options = wanted;
  set_size(linear.weight, {wanted.out_features(), wanted.in_features()});
  if (linear.bias.defined()) {
    set_size(linear.bias, {wanted.out_features()});
  }
}

void give_memory(torch::nn::EmbeddingImpl& embedding, const torch::nn::EmbeddingOptions& wanted) {
  embedding.options = wanted;
  set_size(embedding.weight, {wanted.num_embeddings(), wanted.embedding_dim()});
}

} // namespace

BeforeFirstValues::BeforeFirstValues(const Ranks& ranks) {
  if (!ranks.alone()) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state_ = generator.get_state();
  }
}

void BeforeFirstValues::restore() const {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state_);
}

ColumnParallelLinearImpl::ColumnParallelLinearImpl(int64_t in, int64_t out, const Ranks& ranks, bool bias,
                                                   int64_t parts)
    : BeforeFirstValues(ranks),
      LinearImpl(drawn(torch::nn::LinearOptions(in, columns(out, ranks, parts)).bias(bias))),
      ranks_(ranks),
      in_(in),
      out_(out),
      parts_(parts) {
  if (SkipInit::is_on()) {
    give_memory(*this, torch::nn::LinearOptions(in, columns(out, ranks, parts)).bias(bias));
  } else if (!ranks_.alone()) {
    take_values<LinearImpl>(*this, whole<LinearImpl>(torch::nn::LinearOptions(in, out).bias(bias)), placements());
  }
}

at::Tensor ColumnParallelLinearImpl::project(const at::Tensor& x) {
  return adapted(column_linear(x, weight, {}, ranks_, fp8()), x);
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& x) {
  return adapted(column_linear(x, weight, bias, ranks_, fp8()), x);
}

at::Tensor ColumnParallelLinearImpl::adapted(const at::Tensor& y, const at::Tensor& x) const {
  if (!present()) {
    return y;
  }
  return expand(y, enter(reduce(x, ranks_, /*own_noise=*/ranks_.splits_sequence(), is_training()), ranks_));
}

void ColumnParallelLinearImpl::adapt(const AdapterOptions& options) {
  bucket::Placement placed;
  if (!ranks_.alone()) {
    placed = {
        .global_shape = {out_, options.rank}, .box_offset = {part_of(out_ / parts_, ranks_).begin, 0}, .parts = parts_};
  }
  add(*this, options, AdapterMatrix(at::IntArrayRef{options.rank, in_}, bucket::Placement()),
      AdapterMatrix(at::IntArrayRef{weight.size(0), options.rank}, placed));
}

std::map<std::string, bucket::Placement> ColumnParallelLinearImpl::placements() const {
  if (ranks_.alone()) {
    return {};
  }
  const int64_t begin = part_of(out_ / parts_, ranks_).begin;
  return {{"weight", {.global_shape = {out_, in_}, .box_offset = {begin, 0}, .parts = parts_}},
          {"bias", {.global_shape = {out_}, .box_offset = {begin}, .parts = parts_}}};
}

RowParallelLinearImpl::RowParallelLinearImpl(int64_t in, int64_t out, const Ranks& ranks, bool bias)
    : BeforeFirstValues(ranks),
      LinearImpl(drawn(torch::nn::LinearOptions(split("inputs", in, ranks), out).bias(bias))),
      ranks_(ranks),
      in_(in),
      out_(out) {
  if (SkipInit::is_on()) {
    give_memory(*this, torch::nn::LinearOptions(split("inputs", in, ranks), out).bias(bias));
  } else if (!ranks_.alone()) {
    take_values<LinearImpl>(*this, whole<LinearImpl>(torch::nn::LinearOptions(in, out).bias(bias)), placements());
  }
}

at::Tensor RowParallelLinearImpl::project(const at::Tensor& x) {
  return adapted(row_linear(x, weight, ranks_, fp8()), x);
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& x) {
  if (ranks_.alone()) { // LinearImpl's forward would add the bias in a separate pass
    return adapted(whole_linear(x, weight, bias, fp8()), x);
  }
  const at::Tensor y = project(x);
  return bias.defined() ? y + bias : y;
}

at::Tensor RowParallelLinearImpl::adapted(const at::Tensor& y, const at::Tensor& x) const {
  if (!present()) {
    return y;
  }
  return expand(y, leave(reduce(x, ranks_, /*own_noise=*/true, is_training()), ranks_));
}

void RowParallelLinearImpl::adapt(const AdapterOptions& options) {
  bucket::Placement placed;
  if (!ranks_.alone()) {
    placed = {.global_shape = {options.rank, in_}, .box_offset = {0, part_of(in_, ranks_).begin}};
  }
  add(*this, options, AdapterMatrix(at::IntArrayRef{options.rank, weight.size(1)}, placed),
      AdapterMatrix(at::IntArrayRef{out_, options.rank}, bucket::Placement()));
}

std::map<std::string, bucket::Placement> RowParallelLinearImpl::placements() const {
  if (ranks_.alone()) {
    return {};
  }
  return {{"weight", {.global_shape = {out_, in_}, .box_offset = {0, part_of(in_, ranks_).begin}}}};
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(int64_t vocabulary, int64_t hidden, const Ranks& ranks)
    : BeforeFirstValues(ranks),
      EmbeddingImpl(drawn(torch::nn::EmbeddingOptions(split("rows", vocabulary, ranks), hidden))),
      ranks_(ranks),
      vocabulary_(vocabulary),
      hidden_(hidden) {
  if (SkipInit::is_on()) {
    give_memory(*this, torch::nn::EmbeddingOptions(split("rows", vocabulary, ranks), hidden));
  } else if (!ranks_.alone()) {
    take_values<EmbeddingImpl>(*this, whole<EmbeddingImpl>(torch::nn::EmbeddingOptions(vocabulary, hidden)),
                               placements());
  }
}

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& tokens_BT) {
  if (ranks_.alone()) {
    return fused::embedding(weight, tokens_BT);
  }
  const RankRange part = part_of(vocabulary_, ranks_);
  const at::Tensor elsewhere = tokens_BT.lt(part.begin).logical_or_(tokens_BT.ge(part.end));
  const at::Tensor outside =
      tokens_BT.lt(0).logical_or_(tokens_BT.ge(vocabulary_)); // fails on every rank, as with one rank
  const at::Tensor ids = (tokens_BT - part.begin).masked_fill_(elsewhere, 0).masked_fill_(outside, -1);
  at::Tensor x = fused::embedding(weight, ids);
  x = x.masked_fill(elsewhere.unsqueeze(-1), 0);
  return leave(x, ranks_);
}

at::Tensor VocabParallelEmbeddingImpl::logits(const at::Tensor& x) {
  return column_linear(x, weight, {}, ranks_);
}

std::map<std::string, bucket::Placement> VocabParallelEmbeddingImpl::placements() const {
  if (ranks_.alone()) {
    return {};
  }
  return {{"weight", {.global_shape = {vocabulary_, hidden_}, .box_offset = {part_of(vocabulary_, ranks_).begin, 0}}}};
}

} // namespace trireme::tensor
