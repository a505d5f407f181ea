#pragma once

#include <trireme/data/dataset.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

struct MaskedTokensOptions {
  /// Share of each sample's tokens that are targets: max(1, round(fraction L)) of L, in every sample.
  double fraction = 0.15;
  /// Replaces most of them.
  int64_t mask_token = 0;
  /// Random tokens are below it.
  int64_t vocabulary = 1;
  int64_t seed = 1234;
};

/// Samples for a model that predicts masked tokens, made of the inputs [B, L] of another data set.
///
/// Inputs: tokens [B, L] (int64) and a mask [B, L] (bool), true everywhere because no sample is padded. Targets [B, L]
/// (int64): the original token where it is to be predicted, kIgnored elsewhere. 80 % of the predicted tokens become
/// mask_token, 10 % a random token, 10 % stay. Source: Devlin et al. 2018, arXiv:1810.04805, appendix A.1.
///
/// Which tokens, and what becomes of them, depends on (seed, sample, position) only: the same on every rank and stage,
/// after a resume, and in every epoch. Equal numbers of targets make the mean of micro-batches' losses the mean over
/// all targets. Cost: three multiplications for each token.
class MaskedTokens : public Dataset {
 public:
  /// Target of a token that is not predicted.
  static constexpr int64_t kIgnored = -100;

  /// Errors: InputError for a fraction outside (0, 1), and for a mask_token or vocabulary below 0 or 1.
  MaskedTokens(std::shared_ptr<const Dataset> tokens, const MaskedTokensOptions& options);

  int64_t size() const override { return tokens_->size(); }
  Batch get(std::span<const int64_t> indices) const override { return get_part(indices, Part::all); }
  Batch get_part(std::span<const int64_t> indices, Part part) const override;
  uint64_t fingerprint() const override { return tokens_->fingerprint(); }
  uint64_t checksum() const override { return tokens_->checksum(); }
  std::string describe() const override;

 private:
  uint64_t draw(uint64_t stream, int64_t sample, int64_t position) const;
  std::vector<int64_t> targets_of(int64_t sample, int64_t length) const;
  int64_t replacement(int64_t sample, int64_t position, int64_t token) const;

  std::shared_ptr<const Dataset> tokens_;
  MaskedTokensOptions options_;
};

} // namespace trireme::data
