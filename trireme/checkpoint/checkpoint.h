#pragma once

#include <trireme/checkpoint/lender.h>
#include <trireme/checkpoint/manifest.h>
#include <trireme/checkpoint/options.h>
#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

/// A rank's part of a logical tensor.
struct TensorShard {
  std::string name;
  /// "parameter", "buffer", "master", "optimizer", "rng", ...: for listings and filters.
  std::string kind;
  /// Shape of the logical tensor.
  std::vector<int64_t> global_shape;
  /// First element of `data`, counted in the row-major tensor (or in the box, if one is given).
  int64_t begin = 0;
  /// The elements, any device, any strides; its own shape does not matter. On the meta device: the elements of `lent`.
  at::Tensor data;
  /// Both empty, or the box of the tensor that `begin` counts in (tensor parallel).
  std::vector<int64_t> box_offset;
  std::vector<int64_t> box_size;
  Lent lent = {};
};

/// Saves `mine` of every rank as the checkpoint `root/tag`. Collective over `group`.
///
/// Every element of every logical tensor must come from exactly one rank; any sharding can
/// be read later. `state` and `config` are taken from rank 0, `rank_state` from each rank.
/// The checkpoint holds the state at the time of the call.
///
/// Every rank writes rank<r>.safetensors into a folder root/.tmp-<tag>-<id> and fsyncs it; rank 0 writes
/// manifest.json, renames the folder to root/<tag>, and then points root/latest to it. A
/// process killed at any moment leaves earlier checkpoints and `latest` unchanged; the next save
/// removes its partial files (staging.h), and nothing else.
/// Memory: see write_safetensors. Cost: the time the disk needs; the hash takes about 0.06 s a GB.
/// Errors: PeerError on every rank when a later training has claimed the run folder
/// (SaveOptions::check_claim), which is then unchanged. Error, the same on every rank,
/// naming the ranks that failed, the file and the reason; the partial folder is removed.
/// InputError on every rank when shards leave out or repeat elements. PeerError when a rank
/// is lost.
void save(const std::filesystem::path& root, const std::string& tag, const comm::Group& group,
          const std::vector<TensorShard>& mine, const nlohmann::json& state = nlohmann::json::object(),
          const nlohmann::json& rank_state = nlohmann::json::object(), const SaveOptions& options = {},
          const nlohmann::json& config = nlohmann::json::object());

/// "global_step<N>", the usual tag.
std::string step_tag(int64_t step);

/// A checkpoint, opened for reading. Tensors are read unsharded, whatever their sharding when saved.
class Checkpoint {
 public:
  /// Opens `path`: a checkpoint folder, or the folder above.
  ///
  /// In the folder above, `tag` or else `latest` names the checkpoint. When `latest` is missing or stale, its
  /// checkpoint is damaged, or a newer one was written after it, opens the newest intact one and warns. A checkpoint
  /// named by path or tag is opened or refused, never replaced by another. Another job may save there meanwhile: if it
  /// removes the newest before that is opened, the newest is looked for again, a few times. Cost: with hashes, one read
  /// of all files. If `latest` is stale, up to 0.3 s of waiting for the end of a save. Errors: InputError if no
  /// checkpoint is intact, with the damage of each. Error if the one named by path or tag, or each newest one, was
  /// removed while it was read.
  static Checkpoint open(const std::filesystem::path& path, const std::string& tag = "",
                         const OpenOptions& options = {});

  /// The same on every rank of a group: each rank hashes a part of the files, and all open the same checkpoint.
  static Checkpoint open(const std::filesystem::path& path, const std::string& tag, const comm::Group& group,
                         const OpenOptions& options = {});

  /// The folder of the checkpoint.
  const std::filesystem::path& folder() const;
  const Manifest& manifest() const;
  int64_t step() const;
  int64_t world_size() const;

  bool has(std::string_view name) const;
  /// Errors: InputError with the nearest name if there is no such tensor.
  const TensorEntry& entry(std::string_view name) const;
  /// Names of all tensors, or of one kind, sorted.
  std::vector<std::string> names(std::string_view kind = "") const;

  /// The logical tensor, assembled in new memory.
  at::Tensor read(std::string_view name) const;
  /// Elements [begin, end) of the row-major tensor as a new 1-D tensor. Opens only the files that hold them.
  at::Tensor read_range(std::string_view name, int64_t begin, int64_t end) const;
  /// Fills `out` (contiguous, any device) with elements [begin, begin + out.numel()), converting the dtype if it
  /// differs.
  void read_into(std::string_view name, int64_t begin, at::Tensor out) const;
  /// The same for a region of the tensor: elements of a box. Cost: that of the elements, for any number of rows.
  void read_into(std::string_view name, const Region& region, at::Tensor out) const;

  const nlohmann::json& state() const;
  /// The state that rank `rank` saved. InputError when the checkpoint has fewer ranks.
  const nlohmann::json& rank_state(int rank) const;
  const nlohmann::json& config() const;

 private:
  struct Content;
  friend class Opener;
  explicit Checkpoint(std::shared_ptr<const Content> content);
  std::shared_ptr<const Content> content_;
};

/// Folder of the checkpoint that open() would try first, damaged or not; nullopt if `path`
/// has no checkpoint (nothing saved yet).
std::optional<std::filesystem::path> find_newest(const std::filesystem::path& path);
/// Returns rank 0's answer on every rank, also while another job saves there. Collective.
std::optional<std::filesystem::path> find_newest(const std::filesystem::path& path, const comm::Group& group);

} // namespace trireme::checkpoint
