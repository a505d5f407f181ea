#pragma once

#include <trireme/data/dataset.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::data {

/// Reads CIFAR-10 in its binary version (www.cs.toronto.edu/~kriz/cifar.html). A record is one byte of label, 0 to
/// 9, and 3072 bytes of image: 32 rows of 32 red, then green, then blue values.
///
/// Batches: float input [B, 3, 32, 32] with (value / 255 - mean) / std of its channel, int64 target [B]. Memory:
/// one byte per value (154 MB for the training images); floats are made batch by batch. Errors: InputError naming
/// the file and what was found: missing, empty, a length that is not a multiple of 3073, a label above 9; std <=
/// 0.
class Cifar10 : public Dataset {
 public:
  static constexpr int64_t kSide = 32;
  static constexpr int64_t kChannels = 3;
  static constexpr int64_t kClasses = 10;

  struct Options {
    std::vector<std::filesystem::path> files{};
    /// Mean and standard deviation of red, green and blue; the defaults are those of the training images.
    std::array<double, 3> mean{0.4914, 0.4822, 0.4465};
    std::array<double, 3> std{0.2470, 0.2435, 0.2616};
  };
  explicit Cifar10(const Options& options);

  /// The files' usual names in `folder`: data_batch_1.bin to data_batch_5.bin, or test_batch.bin.
  static std::vector<std::filesystem::path> training_files(const std::filesystem::path& folder);
  static std::vector<std::filesystem::path> test_files(const std::filesystem::path& folder);

  int64_t size() const override { return static_cast<int64_t>(records_.size()) / kRecord; }
  Batch get(std::span<const int64_t> indices) const override;
  Batch get_part(std::span<const int64_t> indices, Part part) const override;
  std::string describe() const override;

 private:
  static constexpr int64_t kArea = kSide * kSide;
  static constexpr int64_t kRecord = 1 + kChannels * kArea;

  const unsigned char* record(int64_t index) const {
    return reinterpret_cast<const unsigned char*>(records_.data()) + index * kRecord;
  }

  /// The records of all files in order.
  std::string records_;
  /// The float for each of the 256 values, per channel.
  std::array<std::array<float, 256>, kChannels> levels_;
  std::string name_;
};

} // namespace trireme::data
