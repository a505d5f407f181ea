#pragma once

#include <trireme/extensions/compress/compressed_sync.h>
#include <trireme/extensions/compress/units.h>
#include <trireme/extensions/compress/warm_up.h>
#include <trireme/optim/options.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::compress {

/// 1-bit Adam. Until the end of the warm-up (WarmUp) another sync does everything, and it is Adam to the bit. After it
/// the second moment stays as it is: each rank moves the first moment by its own gradient, m + (1 - beta1)(g - m), the
/// ranks agree on the mean of these by comm::CompressedAllReduce with signs, and all step with it. What compression
/// leaves out goes into the next step's.
///
/// What travels is in Units. (In the paper and in DeepSpeed the moment travels as it is; biases of keys of a small GPT
/// then came to 900 in 40 steps.)
///
/// ZeRO stage 1: the same, to the bit. Each rank has all of the first moment besides, because it is what moves and
/// travels; second moments and masters stay shared, and stepped parameters travel as ZeRO sends them.
///
/// Parameters of a kind lie in buckets, as always; a scale belongs to at most 2048 elements of one parameter. Elements
/// that had no gradient in the whole warm-up (second moment 0) keep their values afterwards. Clipping and the look for
/// NaN see the ranks' own gradients (parallel::OwnGradientsAgreement): all are scaled by one factor before they enter
/// the moment, so that neither enters the errors. Memory, besides Adam's, for n parameters and N ranks, from the end of
/// the warm-up on: n (1 + 1/N) errors of 4 bytes, n / 4 bytes of messages and n of exponents; with ZeRO n first moments
/// of 4 bytes. Cost then: 2 (n / 8 + 4 n / 2048)(N - 1)/N bytes sent by each rank in a step. Source: Tang et al. 2021,
/// arXiv:2102.02888; DeepSpeed's OnebitAdam, whose names and defaults the options have.
class OneBitAdamSync : public CompressedSync {
 public:
  OneBitAdamSync(std::unique_ptr<parallel::AllReduceSync> plain, const optim::OneBitAdamOptions& options,
                 comm::Group everyone);

  /// The last step of the warm-up; absent: it is not over.
  const std::optional<int64_t>& frozen_at() const {
    return frozen_at_;
  }

  bool compresses() const override {
    return frozen_at_.has_value();
  }
  void attach(const std::vector<bucket::FlatParameters*>& buffers) override;

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state, int64_t steps) override;
  /// "worker_error_R" of rank R of the parameter's group, and "server_error".
  void for_each_state(const nlohmann::json& state, const Visit& visit) override;

 protected:
  struct MomentumOptions {
    const char* kind = nullptr; // in checkpoints
    const char* name = nullptr;
    double beta1 = 0;
    double eps = 0;
  };
  /// `warm_up` says when momenta begin to travel.
  OneBitAdamSync(std::unique_ptr<parallel::AllReduceSync> plain, const MomentumOptions& options, WarmUp warm_up,
                 comm::Group everyone);

  std::unique_ptr<BucketMean> make_mean(const BucketPlace& place) const override;
  void before_exchange() override;
  at::Tensor numbers_of(size_t number) override;
  void take(size_t number, const at::Tensor& mean) override;
  bool start_by_stretches(size_t number, const BucketMean::LeftOut& left_out) override;
  void take_by_stretches(size_t number) override;
  void step_ended(bool taken) override;

  /// Momenta travel from the next step on: the second moment stays as it was after step `at`.
  void freeze(int64_t at);
  /// Both moments of a bucket's elements that the optimizer has here have changed: `before` and `after` of the first.
  virtual void moved(size_t /*number*/, const at::Tensor& /*before*/, const at::Tensor& /*after*/) {}
  virtual bool wants_moved() const {
    return false;
  }
  /// The units of all buckets from the second moments as they are. Collective where these are shared among ranks.
  void make_units();
  const Units& units(size_t number) const {
    return units_[number];
  }
  /// Dead elements are 0 whatever the others do.
  void clear_dead_errors(size_t number) {
    if (units_[number].some_dead()) {
      mean(number).clear_errors(units_[number].exponents());
    }
  }
  double beta1() const {
    return values().beta1().value_or(options_.beta1);
  }
  double eps() const {
    return options_.eps;
  }
  bool is_own(const nlohmann::json& state) const;
  /// Whether errors in a checkpoint of a run with this state fit these ranks.
  bool errors_fit(const nlohmann::json& state) const;

 private:
  double norm_of_second_moments() const;

  MomentumOptions options_;
  WarmUp warm_up_;
  std::optional<int64_t> frozen_at_;
  bool made_ = false;             // what follows
  std::vector<Units> units_;      // of each bucket
  std::vector<at::Tensor> first_; // the first moments of a bucket, where the optimizer does not have all of them
};

} // namespace trireme::compress
