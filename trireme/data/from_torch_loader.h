#pragma once

#include <trireme/data/replay_loader.h>
#include <trireme/data/torch_example.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace trireme::data {

/// Options of from_torch_loader().
struct TorchLoaderOptions {
  /// Called before each pass over the loader, for its sampler: TorchSampler::set_epoch(), or
  /// DistributedRandomSampler::set_epoch(). Default: the loader has the same order in every epoch, or keeps count.
  std::function<void(int64_t epoch)> set_epoch = nullptr;
  /// In logs.
  std::string name = "a loader of torch::data";
  /// This rank in the world.
  int64_t rank = 0;
};

/// Makes training data of a loader of torch::data, which reads this rank's batches: its sampler divides the samples
/// among the ranks, and its batch size is the micro-batch. A RepeatingLoader starts it anew when it ends:
///
///   trireme::TorchSampler sampler(train_size, world);
///   auto loader = torch::data::make_data_loader(std::move(train), sampler,
///                                               torch::data::DataLoaderOptions(8).workers(2).drop_last(true));
///   options.training_loader = std::make_shared<trireme::data::RepeatingLoader>(trireme::data::from_torch_loader(
///       std::move(loader), {.set_epoch = [sampler](int64_t epoch) mutable { sampler.set_epoch(epoch); },
///                           .rank = world.rank()}));
///
/// Samples are tensors, with or without a target. The place in the data is kept over a resume as ReplayLoader does:
/// the batches of the begun epoch are read again. Where the dataset has get_batch() by number, from_torch() resumes
/// without reading.
template <typename TorchLoader>
std::unique_ptr<EpochLoader> from_torch_loader(std::unique_ptr<TorchLoader> loader, TorchLoaderOptions options = {}) {
  using Iterator = decltype(loader->begin());
  struct Pass {
    Iterator at, end;
    bool first = true;
  };
  const std::shared_ptr<TorchLoader> shared = std::move(loader);
  const auto open = std::make_shared<std::shared_ptr<Pass>>(); // the last pass
  ReplayLoader::Begin begin = [shared, open, set_epoch = std::move(options.set_epoch)](int64_t epoch) {
    if (const std::shared_ptr<Pass> before = std::exchange(*open, nullptr)) { // a loader has one pass at a time
      while (before->at != before->end) {
        ++before->at;
      }
    }
    if (set_epoch) {
      set_epoch(epoch);
    }
    const auto pass = std::make_shared<Pass>(Pass{shared->begin(), shared->end()});
    *open = pass;
    return ReplayLoader::Next([pass]() -> std::optional<Batch> {
      if (!std::exchange(pass->first, false)) {
        ++pass->at;
      }
      if (pass->at == pass->end) {
        return std::nullopt;
      }
      return detail::batch_of(*pass->at);
    });
  };
  return std::make_unique<ReplayLoader>(std::move(begin), std::move(options.name), options.rank == 0);
}

} // namespace trireme::data
