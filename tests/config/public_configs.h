#pragma once

#include <tests/support/folders.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme::test {

/// tests/config/public_configs: configurations as public projects write them.
inline std::vector<std::filesystem::path> public_configs() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_dir() + "/tests/config/public_configs")) {
    if (entry.path().extension() == ".json") {
      out.push_back(entry.path());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Those that are refused, with what the message says; all others train.
inline const std::map<std::string, std::string>& refused_public_configs() {
  static const std::map<std::string, std::string> refused = {
      {"imagenet_own_key", "cuda_visible_devices: unknown key"},
      {"summarize_rlhf_zero2_offload", "zero_optimization.offload_param: offload_param with ZeRO stage 2"},
  };
  return refused;
}

} // namespace trireme::test
