#pragma once

#include "folder_fixture.h"

#include <trireme/base/file.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/checkpoint/safetensors.h>

#include <ATen/ATen.h>

#include <cstdio>

namespace trireme::checkpoint {

/// Writes a checkpoint as if rank r had saved `of_ranks[r]`, in one process and without save():
/// what a reader must understand, put together independently of the writer.
inline Manifest write_by_hand(const fs::path& folder, const std::vector<std::vector<TensorShard>>& of_ranks,
                              int64_t serial = 0) {
  fs::create_directories(folder);
  Manifest manifest;
  manifest.about = {1,
                    folder.filename().string(),
                    serial,
                    serial,
                    "2026-01-01T00:00:00Z",
                    static_cast<int64_t>(of_ranks.size()),
                    concat("id", serial)};
  manifest.state = {{"serial", serial}};
  manifest.config = nlohmann::json::object();
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::vector<NamedTensor> tensors;
    for (const TensorShard& shard : of_ranks[rank]) {
      const std::string key = concat("part", tensors.size());
      tensors.push_back({key, shard.data});
      TensorEntry& entry = manifest.tensors[shard.name];
      entry.name = shard.name;
      entry.kind = shard.kind;
      entry.dtype = dtype_name(shard.data.scalar_type());
      entry.shape = shard.global_shape;
      entry.shards.push_back(
          {rank, key, {shard.box_offset, shard.box_size, shard.begin, shard.begin + shard.data.numel()}});
    }
    char name[48];
    std::snprintf(name, sizeof name, "rank%05zu.safetensors", rank);
    const WrittenFile written =
        write_safetensors(folder / name, tensors, {{"trireme_save_id", manifest.about.save_id}});
    manifest.files.push_back({name, static_cast<int>(rank), written.bytes, written.hash});
    manifest.rank_states.push_back({{"rank", rank}});
  }
  write_file_atomically(folder / kManifestName, manifest.to_text());
  return manifest;
}

/// Cuts a tensor at these element numbers: part i holds [cuts[i], cuts[i + 1]).
inline TensorShard part_of(const std::string& name, const at::Tensor& whole, int64_t begin, int64_t end) {
  return {name, "parameter", whole.sizes().vec(), begin, whole.reshape({-1}).narrow(0, begin, end - begin), {}, {}};
}

inline TensorShard whole_of(const std::string& name, const at::Tensor& whole, const std::string& kind = "parameter") {
  return {name, kind, whole.sizes().vec(), 0, whole, {}, {}};
}

inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

} // namespace trireme::checkpoint
