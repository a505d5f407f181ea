#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>

namespace trireme::checkpoint {

/// Lists a safetensors file, an index or folder of them, a checkpoint, or a folder of
/// checkpoints (one line each, the newest intact one in full).
///
/// {"kind": "safetensors"|"weights"|"checkpoint"|"checkpoints", "path", "bytes",
///  "tensors": [{"name", "dtype", "shape", "bytes", "kind"?, "shards"?}], "metadata"? , "files"?:
///  [{"name", "rank", "bytes", "hash", "ok", "problem"?}], "about"?, "state"?, "config"?}
/// Errors: InputError when `path` is none of these or cannot be read; a damaged file of a
/// checkpoint is listed with "ok": false.
nlohmann::ordered_json describe_json(const std::filesystem::path& path, bool verify_hashes = true);

/// The same as text: aligned columns, one tensor a line, the sum at the end.
std::string describe(const std::filesystem::path& path, bool verify_hashes = true);
/// Formats the result of describe_json() as describe() does.
std::string text_of(const nlohmann::ordered_json& found);
/// Whether one of the checkpoints in `found` is damaged.
bool has_damage(const nlohmann::ordered_json& found);

} // namespace trireme::checkpoint
