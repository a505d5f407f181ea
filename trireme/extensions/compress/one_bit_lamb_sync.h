#pragma once

#include <trireme/extensions/compress/one_bit_adam_sync.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::compress {

/// 1-bit LAMB. In the warm-up it equals LAMB to the bit, and averages each parameter's trust ratio. After it momenta
/// are sent as in OneBitAdamSync, and the second moment v is frozen. Trust ratios, which follow from v, would be
/// constant too.
///
/// Changes of the gradients show in the momenta: the ranks rebuild the mean gradient from two of them, (m - beta1
/// m_before) / (1 - beta1). They keep a fresh second moment of it, which scales the ratio but not the step:
///
///   f      = max of (sqrt(v) + eps) / (sqrt(fresh) + eps) over the parameter's elements
///
///   r      = |m / (sqrt(v) + eps)| / |m / (sqrt(v) + eps) + decay|, at most 1
///
///   factor = r f + 1 - r, within [factor_min, factor_max] and within factor_threshold of the step before
///
///   ratio  = factor times the average of the warm-up
///
/// The paper also scales each parameter's momentum to one magnitude, because all parameters share one scale. Here a
/// scale belongs to at most 2048 elements of one parameter, and Units are per element: such a factor would change
/// nothing. The weights of the average add up to 1. DeepSpeed's average begins at 0 and leaves out ratios of exactly 1,
/// so a parameter that begins with zeros would never move again. Elements without a gradient in the warm-up do not
/// count in the maximum.
///
/// Memory besides OneBitAdamSync's: 4n/N bytes of fresh second moments per rank, 12 bytes per parameter. The ranks also
/// exchange 24 bytes per parameter in each step, and all buckets before the first is stepped. ZeRO stage 1 gives the
/// same result, up to the rounding of norms in fp64. Source: Li et al. 2021, arXiv:2104.06069, algorithm 1; names and
/// defaults of options are those of DeepSpeed's OnebitLamb.
class OneBitLambSync final : public OneBitAdamSync {
 public:
  OneBitLambSync(std::unique_ptr<parallel::AllReduceSync> plain, const optim::OneBitLambOptions& options,
                 comm::Group everyone);

  void attach(const std::vector<bucket::FlatParameters*>& buffers) override;
  void begin_step() override;
  void load_state(const nlohmann::json& state, int64_t steps) override;
  /// Also visits "exp_avg_sq_fresh", and "lamb_coefficients": [3], the average, the sum of its weights, the last
  /// factor.
  void for_each_state(const nlohmann::json& state, const Visit& visit) override;

 private:
  void step_ended(bool taken) override;
  void moved(size_t number, const at::Tensor& before, const at::Tensor& after) override;
  bool wants_moved() const override { return true; }
  /// Elements of a bucket whose fresh second moments this rank holds.
  comm::Stretch share(const BucketPlace& place) const;
  void make_fresh();
  void begin_coefficients();
  void share_loaded_coefficients();
  void average_ratios();
  at::Tensor steps_here(int64_t buffer) const;
  void set_ratios(size_t first, size_t last);
  /// Calls f(slot, its elements in share(), counted from the beginning of the bucket) for parameters that have any.
  void for_each_part(const BucketPlace& place,
                     const std::function<void(const bucket::Slot&, const comm::Stretch&)>& f) const;

  optim::OneBitLambOptions options_;
  std::vector<bucket::FlatParameters*> buffers_;
  std::vector<at::Tensor> coefficients_;    // of each buffer: [parameters, 3], fp32
  bool coefficients_are_elsewhere_ = false; // after a load each rank has some of them
  std::vector<at::Tensor> fresh_;           // this rank's share of each bucket; empty: not frozen
};

} // namespace trireme::compress
