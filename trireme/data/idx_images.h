#pragma once

#include <trireme/data/dataset.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::data {

/// Reads images and labels in the IDX format of MNIST (yann.lecun.com/exdb/mnist), plain or gzipped.
///
/// Batches: float input [B, 1, H, W] with (pixel / 255 - mean) / std, int64 target [B]. Memory: one byte per
/// pixel; floats are made batch by batch. Errors: InputError naming the file and what was found: not IDX,
/// another element type, number of dims or length than its header states, or images of different sizes.
/// InputError also for different numbers of images and labels, a label >= classes (0: not checked), or std <=
/// 0.
class IdxImages : public Dataset {
 public:
  struct Options {
    /// One file of labels per file of images.
    std::vector<std::filesystem::path> images{};
    std::vector<std::filesystem::path> labels{};
    double mean = 0;
    double std = 1;
    int64_t classes = 0;
  };
  explicit IdxImages(const Options& options);

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  Batch get(std::span<const int64_t> indices) const override;
  Batch get_part(std::span<const int64_t> indices, Part part) const override;
  std::string describe() const override;

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  /// The largest label plus one.
  int64_t num_labels() const;

 private:
  std::string pixels_;
  std::string labels_;
  int64_t height_ = 0;
  int64_t width_ = 0;
  /// The float of each of the 256 pixel values.
  std::vector<float> levels_;
  std::string name_;
};

} // namespace trireme::data
