#pragma once

#include <trireme/config/compression_options.h>
#include <trireme/extensions/compress/compressed_sync.h>

#include <cstdint>
#include <memory>

namespace trireme::compress {

/// Compresses the mean of the gradients with error feedback, for any optimizer, from a start step on. Each rank adds
/// its gradient to its errors; the compressed mean is the gradient of the step (bucket::SteppedValues::give_gradient).
/// ZeRO stage 1 gives the same bits.
///
/// Memory for n parameters and N ranks: 4n (1 + 1/N) bytes of errors (PowerSGD: 4n), and the messages; 4n more with an
/// optimizer that needs all gradients first (LAMB). Cost per step: that of comm::Compressor or comm::PowerSgd, not
/// overlapped with backward. Source: Karimireddy et al. 2019, arXiv:1901.09847 (error feedback with any compressor);
/// compressors/ names those of the compressors.
class GradientCompressionSync final : public CompressedSync {
 public:
  GradientCompressionSync(std::unique_ptr<parallel::AllReduceSync> plain, const GradientCompressionOptions& options,
                          comm::Group everyone);

  bool compresses() const override { return steps_ >= options_.start_step; }

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state, int64_t steps) override;
  void for_each_state(const nlohmann::json& state, const Visit& visit) override;

 private:
  std::unique_ptr<BucketMean> make_mean(const BucketPlace& place) const override;
  at::Tensor numbers_of(size_t number) override;
  void take(size_t number, const at::Tensor& mean) override;
  bool start_by_stretches(size_t number, const BucketMean::LeftOut& left_out) override;
  void take_by_stretches(size_t number) override { take(number, finished(number)); }
  void step_ended(bool taken) override;
  bool fits(const nlohmann::json& state) const;

  GradientCompressionOptions options_;
  int64_t steps_ = 0; // of the run, including skipped ones
};

} // namespace trireme::compress
