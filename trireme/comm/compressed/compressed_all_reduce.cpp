#include <trireme/comm/compressed/compressed_all_reduce.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace trireme::comm {
namespace {

/// Ranges are multiples of so many elements, as the shards of a bucket are.
constexpr int64_t kRangeElements = 16;
/// Messages lie at multiples of so many bytes.
constexpr int64_t kMessageBytes = 16;

int64_t whole_multiple(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}

} // namespace

CompressedAllReduce::CompressedAllReduce(Group group, std::shared_ptr<const Compressor> compressor, int64_t numel, std::vector<Stretch> stretches)
    : group_(std::move(group)), compressor_(std::move(compressor)), numel_(numel) {
  if (stretches.empty()) {
    stretches.push_back({0, numel});
  }
  int64_t end = 0;
  for (const Stretch& stretch : stretches) {
    if (stretch.begin < end || stretch.end < stretch.begin || stretch.end > numel) {
      throw Error("comm", concat("compressed all-reduce of ", numel, " elements: the stretch [", stretch.begin, ", ", stretch.end, ") leaves them or overlaps the one before it"));
    }
    end = stretch.end;
  }
  const int64_t each = whole_multiple((numel + group_.size() - 1) / group_.size(), kRangeElements);
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Stretch& range = ranges_.emplace_back(Stretch{std::min(rank * each, numel), std::min((rank + 1) * each, numel)});
    slice_ = std::max(slice_, compressor_->message_bytes(stretches_.emplace_back(cut(stretches, range))));
  }
  slice_ = whole_multiple(slice_, kMessageBytes);
}

ErrorFeedback CompressedAllReduce::no_errors(at::Device device) const {
  const auto options = at::TensorOptions(at::kFloat).device(device);
  return {at::zeros({numel_}, options), at::zeros({mine().count()}, options)};
}

int64_t CompressedAllReduce::bytes_a_round() const {
  return 2 * slice_ * (group_.size() - 1);
}

void CompressedAllReduce::check(const at::Tensor& x, const ErrorFeedback& errors) const {
  const auto fits = [&](const at::Tensor& tensor, int64_t numel) {
    return tensor.defined() && tensor.device() == x.device() && tensor.is_contiguous() && tensor.dim() == 1 && tensor.numel() == numel;
  };
  if (!fits(x, numel_) || (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16)) {
    throw Error("comm", concat("compressed all-reduce: a tensor of ", x.sizes(), ' ', x.scalar_type(), ", and it is made for ", numel_, " elements in a row of fp32 or bf16"));
  }
  if (!fits(errors.worker, numel_) || !fits(errors.server, mine().count()) || errors.worker.scalar_type() != at::kFloat || errors.server.scalar_type() != at::kFloat) {
    throw Error("comm", "compressed all-reduce: the errors do not belong to it: take those that no_errors() made.");
  }
}

// The bytes for or of `rank`, of the stretches of `range`.
at::Tensor CompressedAllReduce::message(const at::Tensor& all, int rank, int range) const {
  return all.slice(0, rank * slice_, rank * slice_ + compressor_->message_bytes(stretches_[range]));
}

void CompressedAllReduce::run(const at::Tensor& x, const ErrorFeedback& errors, std::string_view what) {
  start(x, errors, what);
  turn(errors);
  finish(x);
}

void CompressedAllReduce::start(const at::Tensor& x, const ErrorFeedback& errors, std::string_view what) {
  const at::NoGradGuard no_grad;
  check(x, errors);
  what_ = what;
  errors.worker.add_(x);
  if (group_.size() == 1) {
    return;
  }
  if (!sent_.defined()) {
    sent_ = group_.allocate(group_.size() * slice_, at::kByte, x.device()).zero_();
    received_ = group_.allocate(group_.size() * slice_, at::kByte, x.device());
  }
  for (int rank = 0; rank < group_.size(); ++rank) {
    compressor_->compress(errors.worker.slice(0, ranges_[rank].begin, ranges_[rank].end), stretches_[rank], message(sent_, rank, rank));
  }
  work_ = group_.all_to_all(received_, sent_, what_);
}

void CompressedAllReduce::turn(const ErrorFeedback& errors) {
  const at::NoGradGuard no_grad;
  if (group_.size() == 1) {
    errors.server.add_(errors.worker);
    errors.worker.zero_();
    received_ = errors.server;
    return;
  }
  work_.wait();
  const int own = group_.rank();
  at::Tensor sum = at::zeros_like(errors.server);
  for (int rank = 0; rank < group_.size(); ++rank) {
    compressor_->add(message(received_, rank, own), stretches_[own], sum);
  }
  errors.server.add_(sum.div_(group_.size()));
  const at::Tensor mean = message(sent_, own, own);
  compressor_->compress(errors.server, stretches_[own], mean);
  work_ = group_.all_gather(sent_, sent_.slice(0, own * slice_, (own + 1) * slice_), what_);
}

void CompressedAllReduce::finish(const at::Tensor& out) {
  const at::NoGradGuard no_grad;
  if (group_.size() == 1) {
    out.copy_(received_);
    received_.zero_();
    return;
  }
  work_.wait();
  const at::Tensor values = out.scalar_type() == at::kFloat ? out : at::empty({numel_}, out.options().dtype(at::kFloat));
  values.zero_();
  for (int rank = 0; rank < group_.size(); ++rank) {
    compressor_->add(message(sent_, rank, rank), stretches_[rank], values.slice(0, ranges_[rank].begin, ranges_[rank].end));
  }
  if (!values.is_same(out)) {
    out.copy_(values);
  }
}

} // namespace trireme::comm
