#pragma once

#include <trireme/extensions/compress/intervals.h>
#include <trireme/extensions/compress/one_bit_adam_sync.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::compress {

/// 0/1 Adam: no warm-up, but ever fewer steps in which gradients travel as they are. A step is one of four kinds
/// (Intervals says which):
///
///   variance   gradients are summed by another sync, and both moments move: AdamW
///   gradients  the ranks agree on the mean gradient by signs with error feedback; it moves the first moment, the
///   second stays alone      after var_freeze_step each rank steps by itself: nothing travels. In the last step of a
///   round they meet: with x the parameters, y those at the
///              beginning of the round, d = sqrt(v) + eps, each has u = (D y - x) d, the sum of lr times its momenta
///              (D: what decay has left of y). They agree on the mean of u by signs with error feedback; x = D y - u /
///              d, and the first moment is u over the sum of lr: on all ranks the same bits
///   momenta    the same where ranks may not be alone (ZeRO stage 1, local_step_clipper 1): OneBitAdamSync's steps
///
/// Adam's bias corrections hold: that of the second moment counts its moves. What travels is in Units; when these
/// change, errors follow. Errors begin at zero after var_freeze_step. Elements whose second moment is 0 do not move
/// until it is not. A rank that skips a step of a round counts with what it has. Memory, besides Adam's, for n
/// parameters and N ranks: 4n (1 + 1/N) bytes of errors, n of exponents, n/4 of messages; once ranks step alone 4n
/// where the round began. Cost: 8n bytes and more in the first kind, n/4 in the second and at meetings (times (N -
/// 1)/N), where ranks also exchange 32 bytes a parameter. Source: Lu et al. 2022, arXiv:2202.06009, algorithm 1;
/// DeepSpeed's ZeroOneAdam, whose names and defaults the options have.
class ZeroOneAdamSync final : public OneBitAdamSync, public parallel::LocalSteps {
 public:
  /// `alone`: ranks may step by themselves.
  ZeroOneAdamSync(std::unique_ptr<parallel::AllReduceSync> plain, const optim::ZeroOneAdamOptions& options,
                  comm::Group everyone, bool alone);

  const parallel::LocalSteps* local_steps() const override {
    return may_be_alone_ ? this : nullptr;
  }

  bool is_local() const override {
    return kind_ == Kind::alone;
  }
  bool is_local_after(int64_t steps) const override {
    return steps >= options_.var_freeze_step;
  }
  bool ends_round() const override {
    return kind_ != Kind::alone || intervals_.meet_in(steps_ + 1);
  }
  int64_t steps_until_equal() const override {
    return equal_ ? 0 : intervals_.next_meeting(steps_ + 1) - steps_;
  }
  Own own_values() const override {
    return Own::nothing;
  }

  double scale() const override {
    return kind_ == Kind::alone ? 1 : OneBitAdamSync::scale();
  }
  bool compresses() const override {
    return kind_ == Kind::gradients || kind_ == Kind::momenta;
  }

  void attach(const std::vector<bucket::FlatParameters*>& buffers) override;
  void attach_optimizer(bucket::SteppedValues& values) override;
  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override;
  void gradients_alone(bucket::FlatParameters& buffer, int64_t bucket) override;
  void begin_step() override;
  void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) override;
  double exposed_seconds() const override {
    return OneBitAdamSync::exposed_seconds() + exposed_;
  }

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state, int64_t steps) override;
  void for_each_state(const nlohmann::json& state, const Visit& visit) override;

 private:
  enum class Kind { variance, gradients, momenta, alone };
  // Of a parameter, since the round began.
  struct Way {
    double kept = 1;  // D
    double rates = 0; // the sum of lr
  };

  bool is_left_out(const BucketPlace& place, int64_t parameter) const override;
  void before_exchange() override;
  at::Tensor numbers_of(size_t number) override;
  void take(size_t number, const at::Tensor& mean) override;
  bool start_by_stretches(size_t number, const BucketMean::LeftOut& left_out) override;
  void take_by_stretches(size_t number) override;
  void step_ended(bool taken) override;

  void choose_kind();
  void remake_units();
  void keep_start(size_t number);
  void begin_round();
  void note_step();
  void meet();
  void agree_on_ways();
  /// sqrt(v) + eps, as Adam has it.
  at::Tensor denominator(const at::Tensor& second) const;
  bool errors_of(const nlohmann::json& state) const;

  optim::ZeroOneAdamOptions options_;
  Intervals intervals_;
  bool may_be_alone_;
  int64_t steps_ = 0;          // of the run, skipped ones too
  Kind kind_ = Kind::variance; // of the next step
  bool has_errors_ = false;
  bool units_made_ = false; // of the second moments as they are
  bool meeting_ = false;
  bool equal_ = true;
  std::vector<bucket::FlatParameters*> buffers_;
  std::vector<at::Tensor> start_;          // of each bucket, where the round began; undefined: it has not
  std::vector<std::vector<Way>> own_ways_; // by buffer and parameter
  std::vector<std::vector<Way>> ways_;     // their means, in a meeting
  double exposed_ = 0;
};

} // namespace trireme::compress
