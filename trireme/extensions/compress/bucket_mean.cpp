#include <trireme/extensions/compress/bucket_mean.h>

#include <trireme/base/error.h>
#include <trireme/extensions/compress/compressors/power_sgd.h>

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace trireme::compress {
namespace {

std::string error_name(const BucketPlace& place) {
  return concat("worker_error_", place.ranks.rank());
}

std::string what_of(const BucketPlace& place) {
  return concat("compressed, bucket ", place.bucket);
}

// Returns the stretches that a round leaves out.
std::vector<comm::Stretch> outside(const BucketPlace& place, const BucketMean::LeftOut& left_out) {
  std::vector<comm::Stretch> found;
  place.for_each_slot([&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
    if (left_out(slot.tensor)) {
      found.push_back(in_bucket);
    }
  });
  return found;
}

// Zeroes the numbers whose flag is 0; these are few.
void clear_dead(at::Tensor numbers, const at::Tensor& alive) {
  if (!numbers.is_cpu()) {
    numbers.masked_fill_(alive.eq(0), 0);
    return;
  }
  const auto* const flags = alive.const_data_ptr<uint8_t>();
  auto* const values = numbers.mutable_data_ptr<float>();
  const auto count = static_cast<size_t>(numbers.numel());
  for (const uint8_t* dead = flags; (dead = static_cast<const uint8_t*>(std::memchr(
                                         dead, 0, static_cast<size_t>(flags + count - dead)))) != nullptr;) {
    for (; dead != flags + count && *dead == 0; ++dead) {
      values[dead - flags] = 0;
    }
  }
}

class Compressed final : public BucketMean {
 public:
  Compressed(BucketPlace place, std::shared_ptr<const comm::Compressor> compressor)
      : place_(std::move(place)), compressor_(std::move(compressor)), mine_(whole().mine()) {}

  void start(const at::Tensor& x, const LeftOut& left_out) override {
    x_ = x;
    if (place_.ranks.size() > 1) {
      for (const comm::Stretch& one : outside(place_, left_out)) {
        part(x, one).zero_();
      }
    }
    begin(x, left_out);
  }
  void turn() override {
    if (round_ && !std::exchange(turned_, true)) {
      counted([&] { round_->turn(errors_); });
    }
  }
  void finish() override {
    end(x_);
    x_ = at::Tensor();
  }
  bool by_stretches() const override {
    return place_.ranks.size() > 1 && place_.flat->device().is_cpu() && compressor_->loops() != nullptr;
  }
  void start(const comm::AddNumbers& add, const LeftOut& left_out) override { begin(add, left_out); }
  void finish(const comm::TakeMeans& take) override { end(take); }
  int64_t sent() const override { return sent_; }
  void forget_errors() override { errors_ = {}; }
  void clear_errors(const at::Tensor& alive) override {
    if (errors_.worker.defined()) {
      clear_dead(errors_.worker, alive);
      clear_dead(errors_.server, part(alive, mine_));
    }
  }
  void scale_errors(const at::Tensor& factor) override {
    if (errors_.worker.defined()) {
      errors_.worker.mul_(factor);
      errors_.server.mul_(part(factor, mine_));
    }
  }
  void for_each_state(const parallel::SyncState::Visit& visit) override {
    if (place_.ranks.size() == 1) {
      return;
    }
    make_errors();
    place_.for_each_slot([&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
      visit(error_name(place_), place_.tensor(slot), 0, part(errors_.worker, in_bucket));
      if (const comm::Stretch here = overlap(in_bucket, mine_); here.count() > 0) {
        visit("server_error", place_.tensor(slot), here.begin - in_bucket.begin,
              part(errors_.server, here, mine_.begin));
      }
    });
  }

 private:
  template <class Numbers>
  void begin(const Numbers& numbers, const LeftOut& left_out) {
    sent_ = 0;
    turned_ = false;
    if (place_.ranks.size() == 1) {
      return;
    }
    make_errors();
    const bool all = outside(place_, left_out).empty();
    if (all && !of_all_) {
      of_all_ = make(left_out);
    }
    round_ = all ? of_all_ : make(left_out);
    if (round_) {
      counted([&] { round_->start(numbers, errors_, what_of(place_)); });
    }
  }
  template <class Target>
  void end(const Target& target) {
    turn();
    if (const auto round = std::exchange(round_, nullptr)) {
      round->finish(target);
    }
  }
  template <class F>
  void counted(const F& f) {
    const int64_t before = place_.ranks.bytes_sent();
    f();
    sent_ += place_.ranks.bytes_sent() - before;
  }
  comm::CompressedAllReduce whole() const { return {place_.ranks, compressor_, place_.numel()}; }
  void make_errors() {
    if (!errors_.worker.defined()) {
      errors_ = whole().no_errors(place_.flat->device());
    }
  }
  // Returns null if every parameter is left out.
  std::shared_ptr<comm::CompressedAllReduce> make(const LeftOut& left_out) const {
    std::vector<comm::Stretch> stretches;
    place_.for_each_slot([&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
      if (!left_out(slot.tensor)) {
        stretches.push_back(in_bucket);
      }
    });
    return stretches.empty() ? nullptr
                             : std::make_shared<comm::CompressedAllReduce>(place_.ranks, compressor_, place_.numel(),
                                                                           std::move(stretches));
  }

  BucketPlace place_;
  std::shared_ptr<const comm::Compressor> compressor_;
  comm::Stretch mine_; // range whose mean this rank computes
  comm::ErrorFeedback errors_;
  std::shared_ptr<comm::CompressedAllReduce> of_all_; // with all parameters
  std::shared_ptr<comm::CompressedAllReduce> round_;  // the present one
  bool turned_ = false;
  at::Tensor x_;
  int64_t sent_ = 0;
};

class LowRank final : public BucketMean {
 public:
  LowRank(BucketPlace place, int64_t rank)
      : place_(std::move(place)), rank_(rank), mean_(place_.ranks, place_.numel(), matrices(), rank) {}

  void start(const at::Tensor& x, const LeftOut& left_out) override {
    x_ = x;
    kept_.clear();
    make_state();
    for (const comm::Stretch& one : outside(place_, left_out)) {
      part(x, one).zero_();
      kept_.emplace_back(one, part(state_.error, one).clone());
      part(state_.error, one).zero_();
    }
  }
  void finish() override {
    const int64_t before = place_.ranks.bytes_sent();
    mean_.run(x_, state_, what_of(place_));
    sent_ = place_.ranks.bytes_sent() - before;
    for (const auto& [where, error] : kept_) {
      part(state_.error, where).copy_(error);
    }
    x_ = at::Tensor();
  }
  int64_t sent() const override { return sent_; }
  void forget_errors() override { state_ = {}; }
  void clear_errors(const at::Tensor& alive) override {
    if (state_.error.defined()) {
      clear_dead(state_.error, alive);
    }
  }
  void scale_errors(const at::Tensor& factor) override {
    if (state_.error.defined()) {
      state_.error.mul_(factor);
    }
  }
  void for_each_state(const parallel::SyncState::Visit& visit) override {
    if (place_.ranks.size() == 1) {
      return;
    }
    make_state();
    int64_t begin = 0; // of a matrix's Q
    place_.for_each_slot([&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
      visit(error_name(place_), place_.tensor(slot), 0, part(state_.error, in_bucket));
      const comm::FlatMatrix matrix = matrix_of(slot, in_bucket);
      if (is_compressed(matrix)) {
        const bucket::TensorInfo right = of_part(place_.tensor(slot), {matrix.columns, rank_});
        visit(name_of_part(concat("power_sgd_", place_.ranks.rank()), place_.tensor(slot)), right, 0,
              state_.right.slice(0, begin, begin + right.numel()));
        begin += right.numel();
      }
    });
  }

 private:
  comm::FlatMatrix matrix_of(const bucket::Slot& slot, const comm::Stretch& in_bucket) const {
    const std::vector<int64_t>& sizes = place_.tensor(slot).sizes;
    const int64_t rows = sizes.size() < 2 || in_bucket.count() == 0 ? 1 : sizes.front();
    return {in_bucket.begin, rows, in_bucket.count() / rows};
  }
  bool is_compressed(const comm::FlatMatrix& matrix) const {
    return rank_ * (matrix.rows + matrix.columns) < matrix.numel();
  }
  std::vector<comm::FlatMatrix> matrices() const {
    std::vector<comm::FlatMatrix> found;
    place_.for_each_slot([&](const bucket::Slot& slot, const comm::Stretch& in_bucket) {
      if (const comm::FlatMatrix matrix = matrix_of(slot, in_bucket); is_compressed(matrix)) {
        found.push_back(matrix);
      }
    });
    return found;
  }
  void make_state() {
    if (!state_.error.defined()) {
      state_ = mean_.first_state(place_.flat->device(), static_cast<uint64_t>(1 + place_.bucket));
    }
  }

  BucketPlace place_;
  int64_t rank_;
  comm::PowerSgd mean_;
  comm::PowerSgd::State state_;
  std::vector<std::pair<comm::Stretch, at::Tensor>> kept_; // errors of what the round leaves out
  at::Tensor x_;
  int64_t sent_ = 0;
};

} // namespace

std::string name_of_part(const std::string& state, const bucket::TensorInfo& tensor) {
  std::string name = state;
  for (const int64_t offset : tensor.placement.box_offset) {
    name += concat(name.size() == state.size() ? '.' : '_', offset);
  }
  return name;
}

bucket::TensorInfo of_part(const bucket::TensorInfo& tensor, std::vector<int64_t> sizes) {
  bucket::TensorInfo own = tensor;
  own.sizes = std::move(sizes);
  own.placement = {.reduce_group = tensor.placement.reduce_group, .counts_in_norm = tensor.placement.counts_in_norm};
  return own;
}

comm::Stretch overlap(const comm::Stretch& a, const comm::Stretch& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

at::Tensor part(const at::Tensor& of, const comm::Stretch& elements, int64_t first) {
  return of.slice(0, elements.begin - first, elements.end - first);
}

void BucketPlace::for_each_slot(const std::function<void(const bucket::Slot&, const comm::Stretch&)>& f) const {
  const bucket::Bucket& here = layout();
  for (int64_t s = here.first_slot; s < here.last_slot; ++s) {
    const bucket::Slot& slot = flat->layout().slots()[s];
    f(slot, {slot.begin - here.begin, slot.end - here.begin});
  }
}

void BucketMean::start(const comm::AddNumbers&, const LeftOut&) {
  throw Error("compress", "this compressed mean needs a tensor of numbers");
}

void BucketMean::finish(const comm::TakeMeans&) {
  throw Error("compress", "this compressed mean returns a tensor");
}

std::unique_ptr<BucketMean> compressed_mean(BucketPlace place, std::shared_ptr<const comm::Compressor> compressor) {
  return std::make_unique<Compressed>(std::move(place), std::move(compressor));
}

std::unique_ptr<BucketMean> power_sgd_mean(BucketPlace place, int64_t rank) {
  return std::make_unique<LowRank>(std::move(place), rank);
}

std::unique_ptr<BucketMean> mean_of(BucketPlace place, const GradientCompressionOptions& options) {
  using Kind = GradientCompressionOptions::Kind;
  switch (options.kind) {
    case Kind::sign:
      return compressed_mean(std::move(place), comm::sign_compressor());
    case Kind::eight_bit:
      return compressed_mean(std::move(place), comm::eight_bit_compressor());
    case Kind::top_k:
      return compressed_mean(std::move(place), comm::top_k_compressor(options.ratio));
    case Kind::power_sgd:
      return power_sgd_mean(std::move(place), options.rank);
    case Kind::none:
      break;
  }
  throw Error("compress", "gradient compression of kind \"none\"");
}

} // namespace trireme::compress
