#pragma once

#include <trireme/data/loader.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace trireme::data {

/// Epochs of batches from any source that has a beginning and a next(): a loader of torch::data (from_torch_loader()),
/// a file, a generator.
///
///   ReplayLoader([](int64_t epoch) { return [reader = Reader("day.bin", epoch)]() mutable { return reader.next(); };
///   },
///                "day.bin")
///
/// All batches have the same number of rows. The position is the epoch and the number of batches read of it.
/// load_state() starts that epoch and reads as many batches again: it takes as long as reading them did, at most one
/// epoch. The source must give an epoch's batches again in the same order. A hash of the last batch is saved, and
/// compared on the rank that saved it: cost one read of each batch's bytes, several GB/s.
class ReplayLoader : public EpochLoader {
 public:
  /// The batches of an epoch, one by one; nullopt at its end.
  using Next = std::function<std::optional<Batch>()>;
  using Begin = std::function<Next(int64_t epoch)>;

  /// `begin` starts an epoch on this rank; each is read to its end or dropped before the next begins. `compares`: this
  /// rank's state is the one that is saved; an engine saves rank 0's. Errors of next(), skip() and load_state():
  /// InputError for an epoch without a batch, a batch with another number of rows, and other batches than were saved.
  ReplayLoader(Begin begin, std::string describe, bool compares = true);

  std::optional<Batch> next() override;
  /// Reads a batch and drops it.
  bool skip() override;
  void start_epoch(int64_t epoch) override;
  int64_t epoch() const override { return epoch_; }
  void check_epoch() const override {}
  std::string describe() const override { return describe_; }

  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  Begin begin_;
  std::string describe_;
  bool compares_;
  Next next_; ///< nullptr: the epoch has not been begun
  bool ended_ = false;
  int64_t epoch_ = 0;
  int64_t batches_ = 0; ///< read of this epoch
  int64_t rows_ = 0;    ///< of every batch; 0: unknown
  uint64_t last_ = 0;   ///< hash of the last batch; 0: none
};

} // namespace trireme::data
