#pragma once

#include <trireme/base/error.h>
#include <trireme/data/dataset.h>
#include <trireme/data/torch_example.h>

#include <torch/data/datasets/base.h>

#include <concepts>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

/// A dataset of torch::data as training data of an engine or of a DataLoader: see from_torch().
template <typename TorchDataset>
class FromTorch : public Dataset {
 public:
  /// Errors: InputError for a dataset without a size.
  explicit FromTorch(TorchDataset dataset) : dataset_(std::move(dataset)), size_(size_of(dataset_)) {}

  int64_t size() const override { return size_; }
  Batch get(std::span<const int64_t> indices) const override {
    std::vector<size_t> numbers(indices.begin(), indices.end());
    Batch batch;
    {
      const std::lock_guard<std::mutex> lock(mutex_); // get_batch() is not const
      batch = detail::batch_of(dataset_.get_batch(numbers));
    }
    batch.samples = static_cast<int64_t>(indices.size());
    return batch;
  }
  std::string describe() const override { return concat("torch::data: ", size_, " samples"); }

 private:
  static int64_t size_of(TorchDataset& dataset) {
    const std::optional<size_t> size = dataset.size();
    if (!size) {
      throw InputError("data", "from_torch() got a dataset without a size",
                       "Give it size(), or pass batches to train_batch(next) from a torch::data loader.");
    }
    return static_cast<int64_t>(*size);
  }
  mutable std::mutex mutex_;
  mutable TorchDataset dataset_;
  int64_t size_;
};

/// Makes training data of a torch::data dataset: one of your own, of libtorch's, or with transforms
/// (`.map(Normalize<>(...)).map(Stack<>())`). The engine's loader shuffles, shares the samples out among the ranks and
/// keeps the place in checkpoints.
///
///   options.training_data =
///   trireme::data::from_torch(torch::data::datasets::MNIST("data").map(torch::data::transforms::Stack<>()));
///
/// Samples are tensors, with or without a target. Transforms that draw random numbers draw in the loader's thread.
/// Errors: InputError for a dataset that does not know its size.
template <typename TorchDataset>
  requires requires(TorchDataset dataset, std::vector<size_t> numbers) {
    dataset.get_batch(numbers);
    { dataset.size() } -> std::convertible_to<std::optional<size_t>>;
  }
std::shared_ptr<const Dataset> from_torch(TorchDataset dataset) {
  return std::make_shared<FromTorch<TorchDataset>>(std::move(dataset));
}

} // namespace trireme::data
