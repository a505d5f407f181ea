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

/// A sync that leaves gradients where they are in some of its steps (parallel::OwnGradientsAgreement), and exchanges
/// something else by compressed means, a bucket at a time. In its other steps another sync does everything, to the bit.
///
/// A bucket's messages travel to those who add them up while the next bucket's are made, and from them while the bucket
/// before is stepped, but where the optimizer needs all gradients first (LAMB): there all buckets' do before the first
/// is stepped. Either way not while backward runs. Steps that are skipped exchange nothing: nothing of them gets into
/// the errors. The first such step says what it sent.
class CompressedSync : public parallel::GradientSync, public parallel::StepExchange, public parallel::SyncState {
 public:
  /// Whether the present step exchanges compressed means; each rank then has its own gradients.
  virtual bool compresses() const = 0;

  const parallel::StepAgreement& agreement() const override {
    return compresses() ? on_own_gradients_ : GradientSync::agreement();
  }
  parallel::StepExchange& step_exchange() override {
    return *this;
  }
  parallel::SyncState& sync_state() override {
    return *this;
  }

  double scale() const override {
    return plain_->scale();
  }
  void attach(const std::vector<bucket::FlatParameters*>& buffers) override;
  void backward_begins(bool last) override {
    plain_->backward_begins(last);
  }
  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override;
  void gradients_alone(bucket::FlatParameters& buffer, int64_t bucket) override {
    plain_->gradients_alone(buffer, bucket);
  }
  void backward_ended() override {
    plain_->backward_ended();
  }

  void attach_optimizer(bucket::SteppedValues& values) override {
    values_ = &values;
  }
  void begin_step() override;
  void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) override;
  bool end_step(bool taken) override;
  void finish() override {
    plain_->step_exchange().finish();
  }
  double exposed_seconds() const override {
    return plain_->step_exchange().exposed_seconds();
  }

 protected:
  /// `plain`: the sync of the other steps. `everyone`: all ranks that train the model. `name`: of log lines, "1-bit
  /// Adam".
  CompressedSync(std::unique_ptr<parallel::AllReduceSync> plain, comm::Group everyone, std::string name);

  // What a kind of such steps is.

  virtual std::unique_ptr<BucketMean> make_mean(const BucketPlace& place) const = 0;
  /// A step that exchanges begins: once for all buckets.
  virtual void before_exchange() {}
  /// What this rank adds to the mean of bucket `number` of all.
  virtual at::Tensor numbers_of(size_t number) = 0;
  /// What the mean is for.
  virtual void take(size_t number, const at::Tensor& mean) = 0;
  /// The same two by mean(number)'s functions, which saves memory's bandwidth: starts the round, or says that it has to
  /// be by a tensor.
  virtual bool start_by_stretches(size_t /*number*/, const BucketMean::LeftOut& /*left_out*/) {
    return false;
  }
  /// Finishes it.
  virtual void take_by_stretches(size_t /*number*/) {}
  /// Follows each step, taken or skipped.
  virtual void step_ended(bool /*taken*/) {}

  // What they need for it.

  bucket::SteppedValues& values() const {
    return *values_;
  }
  const comm::Group& everyone() const {
    return everyone_;
  }
  const std::string& name() const {
    return name_;
  }
  /// All buckets, in the order in which they are stepped.
  const std::vector<BucketPlace>& places() const {
    return places_;
  }
  BucketMean& mean(size_t number) const {
    return *means_[number];
  }
  bool is_sharded(const BucketPlace& place) const {
    return values_->sharded() && place.ranks.size() > 1;
  }
  /// Elements of the bucket that the optimizer steps here.
  comm::Stretch owned(const BucketPlace& place) const;
  virtual bool is_left_out(const BucketPlace& place, int64_t parameter) const {
    return values_->is_left_out(place.buffer, parameter);
  }
  /// All elements of a bucket, of which each rank has what it owns.
  at::Tensor gathered(const BucketPlace& place, const at::Tensor& own) const;
  /// This rank's gradient of a bucket with the step's factors, and `factor`: the mean over the ranks is the gradient of
  /// the step. A copy, fp32.
  at::Tensor own_gradient(const BucketPlace& place, double factor = 1) const;
  /// What it multiplies the gradient by.
  double gradient_factor(const BucketPlace& place, double factor = 1) const {
    return factor * values_->grad_scale() * place.ranks.size(); // the mean becomes what their sum is to be
  }
  /// The same for mean(number).start(), which reads the flat buffer; on the CPU.
  kernels::MomentumArgs gradient_args(const BucketPlace& place, double factor = 1) const;
  static comm::AddNumbers adder(const kernels::MomentumArgs& args);
  /// What mean(number).finish() gives, multiplied by powers of two (exponents as Units has them) unless they are null:
  /// [numel of the bucket], fp32.
  at::Tensor finished(size_t number, const uint8_t* exponents = nullptr) const;
  /// Bytes of a bucket's gradients, as the plain sync sends them.
  double plain_bytes(const BucketPlace& place) const;
  /// Starts and ends the rounds of all buckets, three at a time.
  void exchange_all();
  void log_first(const std::string& line) const;
  /// Who adds up what, for state(): "ranks" of the data group, the sizes of all "groups", and into how many parts the
  /// most divided parameter of all ranks is "cut".
  nlohmann::json layout() const;
  /// How the run that saved `state` had it otherwise, so that what each rank has left over cannot be used: "" if it did
  /// not. `cut`: parts count too.
  std::string other_layout(const nlohmann::json& state, bool cut = false) const;
  /// The same of parts alone.
  std::string other_cut(const nlohmann::json& state) const;
  void forget_errors();

 private:
  void exchange_until(size_t finished);
  void start(size_t number);
  void report() const;
  /// Into how many parts the most divided parameter of this rank is cut.
  int64_t most_divided() const;

  parallel::OwnGradientsAgreement on_own_gradients_;
  std::unique_ptr<parallel::AllReduceSync> plain_;
  comm::Group everyone_;
  std::string name_;
  bucket::SteppedValues* values_ = nullptr;
  std::vector<BucketPlace> places_;
  int64_t cut_ = 1;
  std::vector<std::unique_ptr<BucketMean>> means_;
  std::vector<at::Tensor> numbers_; // on their way; undefined: by stretches
  size_t started_ = 0;              // in the present step
  size_t turned_ = 0;
  size_t finished_ = 0;
  bool reported_ = false;
};

} // namespace trireme::compress
