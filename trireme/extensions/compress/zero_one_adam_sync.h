#pragma once

#include <trireme/extensions/compress/intervals.h>
#include <trireme/extensions/compress/one_bit_adam_sync.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::compress {

/// 0/1 Adam: no warm-up, but ever fewer steps that send uncompressed gradients. A step is one of four kinds (see
/// Intervals):
///
/// - variance: another sync sums gradients, and both moments move: AdamW.
/// - gradients: a mean of the gradients by signs with error feedback moves the first moment. The second is frozen.
/// - alone: after var_freeze_step each rank takes local steps, which send nothing. The last step of a round averages,
///   see below.
/// - momenta: replaces local steps if they are not possible (ZeRO stage 1, local_step_clipper 1): OneBitAdamSync's
///   steps.
///
/// Averaging step: x are the parameters, y those at the start of the round, d = sqrt(v) + eps, and D what decay has
/// left of y. Each rank has u = (D y - x) d, the sum of lr times its momenta. The ranks compute the mean of u by signs
/// with error feedback. Then x = D y - u / d, and the first moment is u over the sum of lr: the same bits on all ranks.
///
/// Adam's bias corrections hold; that of the second moment counts its updates. Numbers are sent in Units; when these
/// change, errors are converted. Errors begin at zero after var_freeze_step. Elements do not move while their second
/// moment is 0. A rank that skips steps of a round counts with the steps that it took.
///
/// Memory besides Adam's, for n parameters and N ranks: 4n (1 + 1/N) bytes of errors, n of exponents, n/4 of messages;
/// with local steps 4n for the start of the round. Cost, times (N - 1)/N: 8n bytes and more for variance, n/4 for
/// gradients and averaging steps. Averaging steps also exchange 32 bytes per parameter. Source: Lu et al. 2022,
/// arXiv:2202.06009, algorithm 1; names and defaults of options are those of DeepSpeed's ZeroOneAdam.
class ZeroOneAdamSync final : public OneBitAdamSync, public parallel::LocalSteps {
 public:
  /// `alone`: ranks may take local steps.
  ZeroOneAdamSync(std::unique_ptr<parallel::AllReduceSync> plain, const optim::ZeroOneAdamOptions& options,
                  comm::Group everyone, bool alone);

  const parallel::LocalSteps* local_steps() const override { return may_be_alone_ ? this : nullptr; }

  bool is_local() const override { return kind_ == Kind::alone; }
  bool is_local_after(int64_t steps) const override { return steps >= options_.var_freeze_step; }
  bool ends_round() const override { return kind_ != Kind::alone || intervals_.meet_in(steps_ + 1); }
  int64_t steps_until_equal() const override { return equal_ ? 0 : intervals_.next_meeting(steps_ + 1) - steps_; }
  Own own_values() const override { return Own::nothing; }

  double scale() const override { return kind_ == Kind::alone ? 1 : OneBitAdamSync::scale(); }
  bool compresses() const override { return kind_ == Kind::gradients || kind_ == Kind::momenta; }

  void attach(const std::vector<bucket::FlatParameters*>& buffers) override;
  void attach_optimizer(bucket::SteppedValues& values) override;
  comm::Work gradients_ready(bucket::FlatParameters& buffer, int64_t bucket) override;
  void gradients_alone(bucket::FlatParameters& buffer, int64_t bucket) override;
  void begin_step() override;
  void step_bucket(bucket::FlatParameters& buffer, int64_t bucket, const std::function<void()>& step) override;
  double exposed_seconds() const override { return OneBitAdamSync::exposed_seconds() + exposed_; }

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state, int64_t steps) override;
  void for_each_state(const nlohmann::json& state, const Visit& visit) override;

 private:
  enum class Kind { variance, gradients, momenta, alone };
  // Decay and learning rates of a parameter since the start of the round.
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
  void finish_round();
  void agree_on_ways();
  /// sqrt(v) + eps, as in Adam.
  at::Tensor denominator(const at::Tensor& second) const;
  bool errors_of(const nlohmann::json& state) const;

  optim::ZeroOneAdamOptions options_;
  Intervals intervals_;
  bool may_be_alone_;
  int64_t steps_ = 0;          // of the run, including skipped ones
  Kind kind_ = Kind::variance; // of the next step
  bool has_errors_ = false;
  bool units_made_ = false; // from the present second moments
  bool meeting_ = false;
  bool equal_ = true;
  std::vector<bucket::FlatParameters*> buffers_;
  std::vector<at::Tensor> start_;          // of each bucket, at the start of the round; undefined: not saved yet
  std::vector<std::vector<Way>> own_ways_; // by buffer and parameter
  std::vector<std::vector<Way>> ways_;     // their means, during an averaging step
  double exposed_ = 0;
};

} // namespace trireme::compress
