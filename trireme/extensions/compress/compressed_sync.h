#pragma once

#include <trireme/extensions/compress/bucket_mean.h>
#include <trireme/kernels/kernels.h>
#include <trireme/shards/data_parallel/gradient_sync.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace trireme::compress {

/// A sync that does not reduce gradients in some of its steps (parallel::OwnGradientsAgreement), and exchanges
/// compressed means instead, bucket by bucket. In its other steps another sync, `plain`, does everything, to the bit.
///
/// The exchange does not overlap with backward. It is pipelined: the first half of a bucket's round overlaps with
/// compressing the next bucket, the second half with the step of the bucket before. If the optimizer needs all
/// gradients first (LAMB), all rounds run before the first bucket is stepped. Skipped steps exchange nothing, so they
/// do not change the errors. The first compressed step logs the bytes sent.
class CompressedSync : public parallel::GradientSync, public parallel::StepExchange, public parallel::SyncState {
 public:
  /// True if the present step exchanges compressed means; each rank then has its own gradients.
  virtual bool compresses() const = 0;

  const parallel::StepAgreement& agreement() const override {
    return compresses() ? on_own_gradients_ : GradientSync::agreement();
  }
  parallel::StepExchange& step_exchange() override { return *this; }
  parallel::SyncState& sync_state() override { return *this; }

  double scale() const override { return plain_->scale(); }
  void attach(const std::vector<bucket::FlatParameters*>& buffers) override;
  void backward_begins(bool last) override { plain_->backward_begins(last); }
  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override;
  void gradients_alone(bucket::FlatParameters& buffer, int64_t bucket) override {
    plain_->gradients_alone(buffer, bucket);
  }
  void backward_ended() override { plain_->backward_ended(); }

  void attach_optimizer(bucket::SteppedValues& values) override { values_ = &values; }
  void begin_step() override;
  void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) override;
  bool end_step(bool taken) override;
  void finish() override { plain_->step_exchange().finish(); }
  double exposed_seconds() const override { return plain_->step_exchange().exposed_seconds(); }

 protected:
  /// `plain`: the sync of the other steps. `everyone`: all ranks that train the model. `name`: for logs, "1-bit Adam".
  CompressedSync(std::unique_ptr<parallel::AllReduceSync> plain, comm::Group everyone, std::string name);

  // -- What a derived class defines.

  virtual std::unique_ptr<BucketMean> make_mean(const BucketPlace& place) const = 0;
  /// Called once, before the exchanges of a step.
  virtual void before_exchange() {}
  /// Returns this rank's summand of the mean of bucket `number`, an index into places().
  virtual at::Tensor numbers_of(size_t number) = 0;
  /// Uses the mean.
  virtual void take(size_t number, const at::Tensor& mean) = 0;
  /// Starts the round with mean(number)'s functions instead of numbers_of(), which saves memory bandwidth. False: the
  /// round needs a tensor.
  virtual bool start_by_stretches(size_t /*number*/, const BucketMean::LeftOut& /*left_out*/) { return false; }
  /// Finishes a round of start_by_stretches(), instead of take().
  virtual void take_by_stretches(size_t /*number*/) {}
  /// Follows each step, taken or skipped.
  virtual void step_ended(bool /*taken*/) {}

  // -- What the base class provides.

  bucket::SteppedValues& values() const { return *values_; }
  const comm::Group& everyone() const { return everyone_; }
  const std::string& name() const { return name_; }
  /// All buckets, in the order in which they are stepped.
  const std::vector<BucketPlace>& places() const { return places_; }
  BucketMean& mean(size_t number) const { return *means_[number]; }
  bool is_sharded(const BucketPlace& place) const { return values_->sharded() && place.ranks.size() > 1; }
  /// Elements of the bucket that this rank's optimizer steps.
  comm::Stretch owned(const BucketPlace& place) const;
  virtual bool is_left_out(const BucketPlace& place, int64_t parameter) const {
    return values_->is_left_out(place.buffer, parameter);
  }
  /// Gathers all elements of a bucket from the ranks that own them.
  at::Tensor gathered(const BucketPlace& place, const at::Tensor& own) const;
  /// Returns a copy of this rank's gradient of a bucket in fp32, multiplied by the step's factors and `factor`: the
  /// mean over the ranks is the gradient of the step.
  at::Tensor own_gradient(const BucketPlace& place, double factor = 1) const;
  /// The factor of own_gradient().
  double gradient_factor(const BucketPlace& place, double factor = 1) const {
    return factor * values_->grad_scale() * place.ranks.size(); // turns the mean into the step's scaled sum
  }
  /// Arguments for the same as own_gradient(), read from the flat buffer by mean(number).start(); on the CPU.
  kernels::MomentumArgs gradient_args(const BucketPlace& place, double factor = 1) const;
  static comm::AddNumbers adder(const kernels::MomentumArgs& args);
  /// Returns the result of mean(number).finish(): [numel of the bucket], fp32. Multiplies it by powers of two, whose
  /// exponents are as in Units, unless they are null.
  at::Tensor finished(size_t number, const uint8_t* exponents = nullptr) const;
  /// Bytes of a bucket's gradients, as the plain sync sends them.
  double plain_bytes(const BucketPlace& place) const;
  /// Runs the rounds of all buckets, up to three at a time.
  void exchange_all();
  void log_first(const std::string& line) const;
  /// Describes the groups that sum, for state(): "ranks" of the data group, sizes of all "groups", and "cut", the
  /// number of parts of the parameter that is divided most on any rank.
  nlohmann::json layout() const;
  /// Describes how the layout of `state` differs from this run's, so that errors cannot be used; "" if it does not.
  /// `cut`: compares the parts too.
  std::string other_layout(const nlohmann::json& state, bool cut = false) const;
  /// Compares only the parts.
  std::string other_cut(const nlohmann::json& state) const;
  void forget_errors();

 private:
  void exchange_until(size_t finished);
  void start(size_t number);
  void report() const;
  /// Number of parts of this rank's most divided parameter.
  int64_t most_divided() const;

  parallel::OwnGradientsAgreement on_own_gradients_;
  std::unique_ptr<parallel::AllReduceSync> plain_;
  comm::Group everyone_;
  std::string name_;
  bucket::SteppedValues* values_ = nullptr;
  std::vector<BucketPlace> places_;
  int64_t cut_ = 1;
  std::vector<std::unique_ptr<BucketMean>> means_;
  std::vector<at::Tensor> numbers_; // in flight; undefined: by stretches
  size_t started_ = 0;              // counts of the present step
  size_t turned_ = 0;
  size_t finished_ = 0;
  bool reported_ = false;
};

} // namespace trireme::compress
