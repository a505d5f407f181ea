#include <trireme/extensions/compress/compressors/compressed_all_reduce.h>

#include <trireme/base/error.h>
#include <trireme/extensions/compress/compressors/stretches.h>
#include <trireme/kernels/kernels.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>

namespace trireme::comm {
namespace {

using Room = std::array<float, kLongestStretch>; // numbers of a stretch

// Adds a tensor of fp32 or bf16.
AddNumbers numbers_of(const at::Tensor& x) {
  kernels::MomentumArgs args;
  args.grad = x.const_data_ptr();
  args.grad_type = x.scalar_type() == at::kFloat ? kernels::Element::f32 : kernels::Element::bf16;
  return
      [args](int64_t begin, int64_t end, float* to) { kernels::active_kernels().add_momentum(args, begin, end, to); };
}

} // namespace

CompressedAllReduce::CompressedAllReduce(Group group, std::shared_ptr<const Compressor> compressor, int64_t numel,
                                         std::vector<Stretch> stretches)
    : group_(std::move(group)), compressor_(std::move(compressor)), numel_(numel) {
  if (stretches.empty()) {
    stretches.push_back({0, numel});
  }
  int64_t end = 0;
  for (const Stretch& stretch : stretches) {
    if (stretch.begin < end || stretch.end < stretch.begin || stretch.end > numel) {
      throw Error("comm", concat("compressed all-reduce of ", numel, " elements: the stretch [", stretch.begin, ", ",
                                 stretch.end, ") leaves them or overlaps the one before it"));
    }
    end = stretch.end;
  }
  const int64_t each = range_elements(numel, group_.size());
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Stretch& range =
        ranges_.emplace_back(Stretch{std::min(rank * each, numel), std::min((rank + 1) * each, numel)});
    slice_ = std::max(slice_, compressor_->message_bytes(stretches_.emplace_back(cut(stretches, range))));
    if (const StretchLoops* const loops = compressor_->loops()) {
      places_.push_back(loops->places(stretches_.back()));
    }
  }
  slice_ = whole_multiple(slice_, kMessageBytes);
}

ErrorFeedback CompressedAllReduce::no_errors(at::Device device) const {
  const auto options = at::TensorOptions(at::kFloat).device(device);
  return {at::zeros({numel_}, options), at::zeros({mine().count()}, options)};
}

void CompressedAllReduce::check(const at::Tensor& x) const {
  if (!x.defined() || !x.is_contiguous() || x.dim() != 1 || x.numel() != numel_ ||
      (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16)) {
    throw Error("comm", concat("compressed all-reduce: a tensor of ", x.sizes(), ' ', x.scalar_type(), "; expected ",
                               numel_, " contiguous elements of fp32 or bf16"));
  }
}

void CompressedAllReduce::check(const ErrorFeedback& errors, at::Device device) const {
  const auto fits = [&](const at::Tensor& tensor, int64_t numel) {
    return tensor.defined() && tensor.device() == device && tensor.is_contiguous() && tensor.dim() == 1 &&
           tensor.numel() == numel && tensor.scalar_type() == at::kFloat;
  };
  if (!fits(errors.worker, numel_) || !fits(errors.server, mine().count())) {
    throw Error("comm", "compressed all-reduce: the errors do not belong to it: pass those of no_errors().");
  }
}

// The message to or from `rank` with the stretches of `range`.
at::Tensor CompressedAllReduce::message(const at::Tensor& all, int rank, int range) const {
  return all.slice(0, rank * slice_, rank * slice_ + compressor_->message_bytes(stretches_[range]));
}

void CompressedAllReduce::run(const at::Tensor& x, const ErrorFeedback& errors, std::string_view what) {
  start(x, errors, what);
  turn(errors);
  finish(x);
}

void CompressedAllReduce::make_messages(at::Device device) {
  if (!sent_.defined()) {
    sent_ = group_.allocate(group_.size() * slice_, at::kByte, device).zero_();
    received_ = group_.allocate(group_.size() * slice_, at::kByte, device);
  }
}

void CompressedAllReduce::start(const at::Tensor& x, const ErrorFeedback& errors, std::string_view what) {
  check(x);
  check(errors, x.device());
  if (by_stretches(x.device())) {
    start(numbers_of(x), errors, what);
    return;
  }
  const at::NoGradGuard no_grad;
  what_ = what;
  errors.worker.add_(x);
  if (group_.size() == 1) {
    return;
  }
  make_messages(x.device());
  for (int rank = 0; rank < group_.size(); ++rank) {
    compressor_->compress(errors.worker.slice(0, ranges_[rank].begin, ranges_[rank].end), stretches_[rank],
                          message(sent_, rank, rank));
  }
  work_ = group_.all_to_all(received_, sent_, what_);
}

void CompressedAllReduce::start(const AddNumbers& add, const ErrorFeedback& errors, std::string_view what) {
  const at::NoGradGuard no_grad;
  check(errors, at::kCPU);
  what_ = what;
  const bool sends = group_.size() > 1;
  if (sends) {
    make_messages(at::kCPU);
  }
  const StretchLoops& loops = *compressor_->loops();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t first = ranges_[rank].begin;
    auto* const values = errors.worker.mutable_data_ptr<float>() + first;
    auto* const bytes = sends ? message(sent_, rank, rank).mutable_data_ptr<uint8_t>() : nullptr;
    for_each_stretch(stretches_[rank].size(), [&](size_t s) {
      const Stretch& stretch = stretches_[rank][s];
      add(first + stretch.begin, first + stretch.end, values + stretch.begin);
      if (sends) {
        loops.compress_one(values + stretch.begin, stretch.count(), places_[rank][s], bytes);
      }
    });
  }
  if (sends) {
    work_ = group_.all_to_all(received_, sent_, what_);
  }
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
  const at::Tensor mean = message(sent_, own, own);
  if (by_stretches(errors.server.device())) {
    add_means(errors.server, mean);
  } else {
    at::Tensor sum = at::zeros_like(errors.server);
    for (int rank = 0; rank < group_.size(); ++rank) {
      compressor_->add(message(received_, rank, own), stretches_[own], sum);
    }
    errors.server.add_(sum.div_(group_.size()));
    compressor_->compress(errors.server, stretches_[own], mean);
  }
  work_ = group_.all_gather(sent_, sent_.slice(0, own * slice_, (own + 1) * slice_), what_);
}

// Adds the messages' mean and the errors, and compresses it.
void CompressedAllReduce::add_means(const at::Tensor& server, const at::Tensor& mean) const {
  const StretchLoops& loops = *compressor_->loops();
  const std::vector<Stretch>& stretches = stretches_[group_.rank()];
  std::vector<const uint8_t*> came;
  for (int rank = 0; rank < group_.size(); ++rank) {
    came.push_back(message(received_, rank, group_.rank()).const_data_ptr<uint8_t>());
  }
  auto* const values = server.mutable_data_ptr<float>();
  auto* const bytes = mean.mutable_data_ptr<uint8_t>();
  for_each_stretch(stretches.size(), [&](size_t s) {
    const Stretch& stretch = stretches[s];
    const StretchLoops::Place& place = places_[group_.rank()][s];
    Room sum;
    std::fill_n(sum.begin(), stretch.count(), 0.0F);
    for (const uint8_t* const one : came) {
      loops.add_one(one, place, stretch.count(), sum.data());
    }
    kernels::active_kernels().add_quotients(sum.data(), stretch.count(), static_cast<float>(group_.size()),
                                            values + stretch.begin);
    loops.compress_one(values + stretch.begin, stretch.count(), place, bytes);
  });
}

void CompressedAllReduce::finish(const at::Tensor& out) {
  const at::NoGradGuard no_grad;
  if (group_.size() == 1) {
    out.copy_(received_);
    received_.zero_();
    return;
  }
  work_.wait();
  const at::Tensor values =
      out.scalar_type() == at::kFloat ? out : at::empty({numel_}, out.options().dtype(at::kFloat));
  values.zero_();
  for (int rank = 0; rank < group_.size(); ++rank) {
    compressor_->add(message(sent_, rank, rank), stretches_[rank],
                     values.slice(0, ranges_[rank].begin, ranges_[rank].end));
  }
  if (!values.is_same(out)) {
    out.copy_(values);
  }
}

void CompressedAllReduce::finish(const TakeMeans& take) {
  const at::NoGradGuard no_grad;
  const bool sends = group_.size() > 1;
  if (sends) {
    work_.wait();
  }
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t first = ranges_[rank].begin;
    const auto* const bytes = sends ? message(sent_, rank, rank).const_data_ptr<uint8_t>() : nullptr;
    const auto* const exact = sends ? nullptr : received_.const_data_ptr<float>();
    for_each_stretch(stretches_[rank].size(), [&](size_t s) {
      const Stretch& stretch = stretches_[rank][s];
      Room means;
      if (sends) {
        std::fill_n(means.begin(), stretch.count(), 0.0F);
        compressor_->loops()->add_one(bytes, places_[rank][s], stretch.count(), means.data());
      } else {
        std::copy_n(exact + stretch.begin, stretch.count(), means.begin());
      }
      take(first + stretch.begin, first + stretch.end, means.data());
    });
  }
  if (!sends) {
    received_.zero_();
  }
}

} // namespace trireme::comm
