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

/// 1-bit Adam. Until the end of the warm-up (WarmUp) another sync does everything, and it equals Adam to the bit.
/// Afterwards the second moment is frozen. Each rank moves the first moment by its own gradient, m + (1 - beta1)(g -
/// m). comm::CompressedAllReduce with signs computes the mean, and all ranks step with it. The error of the compression
/// is added in the next step.
///
/// Moments are sent in Units. The paper and DeepSpeed send them as they are: biases of keys of a small GPT then reached
/// 900 in 40 steps. A scale belongs to at most 2048 elements of one parameter. Elements without a gradient in the whole
/// warm-up (second moment 0) do not change afterwards.
///
/// Clipping and the check for NaN use the ranks' own gradients (parallel::OwnGradientsAgreement). All gradients are
/// scaled by one factor before they enter the moment, so neither affects the errors.
///
/// ZeRO stage 1 gives the same bits. Each rank also holds the whole first moment, because it is updated and sent.
/// Second moments and masters stay sharded, and ZeRO sends the stepped parameters as always.
///
/// Memory besides Adam's after the warm-up, for n parameters and N ranks: 4n (1 + 1/N) bytes of errors, n/4 of
/// messages, n of exponents; with ZeRO 4n of first moments. Cost per step: each rank sends 2 (n / 8 + 4 n / 2048)(N -
/// 1)/N bytes. Source: Tang et al. 2021, arXiv:2102.02888; names and defaults of options are those of DeepSpeed's
/// OnebitAdam.
class OneBitAdamSync : public CompressedSync {
 public:
  OneBitAdamSync(std::unique_ptr<parallel::AllReduceSync> plain, const optim::OneBitAdamOptions& options,
                 comm::Group everyone);

  /// The last step of the warm-up; absent while it lasts.
  const std::optional<int64_t>& frozen_at() const { return frozen_at_; }

  bool compresses() const override { return frozen_at_.has_value(); }
  void attach(const std::vector<bucket::FlatParameters*>& buffers) override;

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state, int64_t steps) override;
  /// Visits "worker_error_R" of rank R of the parameter's group, and "server_error".
  void for_each_state(const nlohmann::json& state, const Visit& visit) override;

 protected:
  struct MomentumOptions {
    const char* kind = nullptr; // name in checkpoints
    const char* name = nullptr;
    double beta1 = 0;
    double eps = 0;
  };
  /// `warm_up` decides when momenta are first sent.
  OneBitAdamSync(std::unique_ptr<parallel::AllReduceSync> plain, const MomentumOptions& options, WarmUp warm_up,
                 comm::Group everyone);

  std::unique_ptr<BucketMean> make_mean(const BucketPlace& place) const override;
  void before_exchange() override;
  at::Tensor numbers_of(size_t number) override;
  void take(size_t number, const at::Tensor& mean) override;
  bool start_by_stretches(size_t number, const BucketMean::LeftOut& left_out) override;
  void take_by_stretches(size_t number) override;
  void step_ended(bool taken) override;

  /// Sends momenta from the next step on. The second moment stays as it was after step `at`.
  void freeze(int64_t at);
  /// Called when both moments of this rank's elements of a bucket have changed. `before` and `after`: the first moment.
  virtual void moved(size_t /*number*/, const at::Tensor& /*before*/, const at::Tensor& /*after*/) {}
  virtual bool wants_moved() const { return false; }
  /// Computes the units of all buckets from the second moments. Collective if these are sharded.
  void make_units();
  const Units& units(size_t number) const { return units_[number]; }
  /// Zeroes the errors of dead elements, which are 0 on all ranks.
  void clear_dead_errors(size_t number) {
    if (units_[number].some_dead()) {
      mean(number).clear_errors(units_[number].exponents());
    }
  }
  double beta1() const { return values().beta1().value_or(options_.beta1); }
  double eps() const { return options_.eps; }
  bool is_own(const nlohmann::json& state) const;
  /// True if the errors in a checkpoint with this state fit these ranks.
  bool errors_fit(const nlohmann::json& state) const;

 private:
  double norm_of_second_moments() const;

  MomentumOptions options_;
  WarmUp warm_up_;
  std::optional<int64_t> frozen_at_;
  bool made_ = false;             // units_ and first_ are computed
  std::vector<Units> units_;      // one per bucket
  std::vector<at::Tensor> first_; // first moments of a bucket if the optimizer has only a shard of them
};

} // namespace trireme::compress
