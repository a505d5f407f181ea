#pragma once

#include <trireme/checkpoint/safetensors.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

/// Weights in Hugging Face's layout: one safetensors file, or several with an index whose "weight_map" maps each tensor
/// to its file.
///
/// Errors: InputError for a missing file, a tensor missing from the file that the index names, or an index that points
/// out of its folder.
class WeightFiles {
 public:
  /// `path` is a .safetensors file, an ...index.json, or a folder with model.safetensors,
  /// model.safetensors.index.json or exactly one .safetensors file (looked for in this order).
  static WeightFiles open(const std::filesystem::path& path);

  /// Sorted.
  std::vector<std::string> names() const;
  bool has(std::string_view name) const;
  /// Zero-copy view, see Safetensors::tensor().
  at::Tensor tensor(std::string_view name) const;
  const std::vector<Safetensors>& files() const { return files_; }

 private:
  const Safetensors& file_of(std::string_view name) const;

  std::filesystem::path path_;
  std::vector<Safetensors> files_;
  std::map<std::string, size_t, std::less<>> file_of_;
};

} // namespace trireme::checkpoint
