#pragma once

#include <trireme/extensions/compress/one_bit_adam_sync.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::compress {

/// 1-bit LAMB. Until the end of the warm-up it is LAMB to the bit, and keeps an average of each parameter's trust
/// ratio. After it momenta travel as in OneBitAdamSync, the second moment v stays, and so would trust ratios, which
/// follow from v. What the gradients have become since is seen in the momenta: the ranks rebuild the mean gradient from
/// two of them, (m - beta1 m_before) / (1 - beta1), and keep a fresh second moment of it, which scales the ratio but
/// not the step:
///
///   factor = max of (sqrt(v) + eps) / (sqrt(fresh) + eps) over the parameter's elements, r factor + 1 - r where r = |m
///   / (sqrt(v) + eps)| / |the same + decay|, at most 1;
///            within [factor_min, factor_max], and within factor_threshold of what it was in the step before
///   ratio = factor times the average of the warm-up
///
/// The paper also scales each parameter's momentum so that all have one magnitude, because one scale is for all of
/// them. Here a scale is for at most 2048 elements of one parameter, and what travels is in Units, an element's own:
/// such a factor would change nothing. The average counts each step of the warm-up by weights that add up to 1;
/// DeepSpeed's begins at 0, and leaves out ratios of exactly 1, so that a parameter that began with zeros would never
/// move again. Elements without a gradient in the warm-up do not count in the maximum.
///
/// Memory, besides OneBitAdamSync's: 4n/N bytes of fresh second moments a rank, 12 bytes a parameter. The ranks also
/// exchange 24 bytes a parameter in each step. With ZeRO stage 1: the same, up to the rounding of norms in fp64. All
/// buckets are exchanged before the first is stepped. Source: Li et al. 2021, arXiv:2104.06069, algorithm 1;
/// DeepSpeed's OnebitLamb, whose names and defaults the options have.
class OneBitLambSync final : public OneBitAdamSync {
 public:
  OneBitLambSync(std::unique_ptr<parallel::AllReduceSync> plain, const optim::OneBitLambOptions& options,
                 comm::Group everyone);

  void attach(const std::vector<bucket::FlatParameters*>& buffers) override;
  void begin_step() override;
  void load_state(const nlohmann::json& state, int64_t steps) override;
  /// Also "exp_avg_sq_fresh", and "lamb_coefficients": [3], the average, its weights' sum, the last factor.
  void for_each_state(const nlohmann::json& state, const Visit& visit) override;

 private:
  void step_ended(bool taken) override;
  void moved(size_t number, const at::Tensor& before, const at::Tensor& after) override;
  bool wants_moved() const override {
    return true;
  }
  /// Elements of a bucket whose fresh second moments this rank has.
  comm::Stretch share(const BucketPlace& place) const;
  void make_fresh();
  void begin_coefficients();
  void share_loaded_coefficients();
  void average_ratios();
  at::Tensor steps_here(int64_t buffer) const;
  void set_ratios(size_t first, size_t last);
  /// Calls f(slot, its elements of share(), counted from the beginning of the bucket) for parameters that have some.
  void for_each_part(const BucketPlace& place,
                     const std::function<void(const bucket::Slot&, const comm::Stretch&)>& f) const;

  optim::OneBitLambOptions options_;
  std::vector<bucket::FlatParameters*> buffers_;
  std::vector<at::Tensor> coefficients_;    // of each buffer: [parameters, 3], fp32
  bool coefficients_are_elsewhere_ = false; // after a load each rank has some
  std::vector<at::Tensor> fresh_;           // of each bucket, its share; empty: not frozen
};

} // namespace trireme::compress
