#pragma once

#include <trireme/data/batch.h>

#include <cstdint>
#include <span>
#include <string>

namespace trireme::data {

/// Part of a sample to read: the first stage of a pipeline needs inputs, the last one targets.
enum class Part { all, inputs, targets };

/// Samples by number. `get` is called from the loader's thread: const and thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// The samples, stacked in the order of `indices`. Errors: InputError naming file and position for unusable
  /// content.
  virtual Batch get(std::span<const int64_t> indices) const = 0;
  /// Returns only one part of the samples. Override it if that is cheaper.
  virtual Batch get_part(std::span<const int64_t> indices, Part part) const {
    Batch batch = get(indices);
    (part == Part::inputs ? batch.targets : batch.inputs).clear();
    return batch;
  }
  /// True if some targets are kIgnoredTarget, and samples have different numbers of those that count.
  virtual bool masks_targets() const { return false; }
  /// Number of targets of the samples that count; asked only if masks_targets(). Must be cheap: every rank asks for the
  /// samples of all ranks.
  virtual int64_t counted_targets(std::span<const int64_t> /*indices*/) const { return 0; }
  /// Not 0 where the samples depend on more than their number, as in a mixture: differs where they do. A loader saves
  /// it with its position, and refuses to continue with another one.
  virtual uint64_t fingerprint() const { return 0; }
  /// Of the content of the samples, where it is known without reading them; 0: unknown. A loader saves it with its
  /// position, and refuses to continue with another one; initialize() refuses ranks that have different ones.
  virtual uint64_t checksum() const { return 0; }
  /// "tokens: 4.02M in 31.4k samples of 128 (austen.bin)".
  virtual std::string describe() const = 0;
};

/// Dataset::checksum() of data sets one after the other; 0 if that of one is unknown.
uint64_t joint_checksum(std::span<const uint64_t> checksums);

} // namespace trireme::data
