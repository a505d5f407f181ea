#pragma once

#include <cstdint>
#include <functional>

namespace trireme::checkpoint {

/// Reaction to different tags in the ranks' calls of save() (DeepSpeed's checkpoint.tag_validation). `fail` refuses on
/// every rank; the other two save under rank 0's tag.
enum class TagValidation { ignore, warn, fail };

struct CheckpointOptions {
  /// Checkpoints kept in the folder; older ones are removed once the new one is durable. 0 keeps all.
  int64_t keep_last = 3;
  /// Hash every file when opening. XXH3-128, several GB/s, bound by reading the file; sizes are always checked.
  bool verify_hashes = true;
  TagValidation tag_validation = TagValidation::warn;
};

struct SaveOptions {
  int64_t keep_last = 3;
  /// Refuse to save under a tag that exists. By default the old checkpoint is replaced in one atomic exchange.
  bool fail_if_exists = false;
  TagValidation tag_validation = TagValidation::warn;
  /// Called on rank 0 before each change that others see. Throws PeerError when a later training has claimed the run
  /// folder (RunToken::check()).
  std::function<void()> check_claim = nullptr;

  SaveOptions() = default;
  /// Takes the options of the run that concern saving.
  explicit SaveOptions(const CheckpointOptions& options)
      : keep_last(options.keep_last), tag_validation(options.tag_validation) {}
};

struct OpenOptions {
  bool verify_hashes = true;
  /// Maps all files at once, so that the checkpoint can be read after its training has removed it. Cost: a header for
  /// each file; the disk frees a removed file only when the checkpoint is closed.
  bool hold_files = false;

  OpenOptions() = default;
  explicit OpenOptions(const CheckpointOptions& options) : verify_hashes(options.verify_hashes) {}
};

} // namespace trireme::checkpoint
