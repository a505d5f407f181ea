#pragma once

#include <trireme/base/json.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::config {

/// Makes the paths of a run file absolute: they start at its folder; a path that does not exist there is looked up in
/// the working directory.
class RunPaths {
 public:
  /// `absent`: collects files that do not exist; nullptr: all must.
  RunPaths(std::filesystem::path folder, std::vector<std::filesystem::path>* absent)
      : folder_(std::move(folder)), absent_(absent) {}

  /// The path that `node` holds. Errors: InputError with its place if it is empty, or there is no such file.
  std::filesystem::path one(const JsonNode& node) const;
  /// The path `text`, which is what `node` holds, or a part of it.
  std::filesystem::path one(const JsonNode& node, const std::string& text) const;
  /// The same; `next` says what to do if it is not there.
  std::filesystem::path one(const JsonNode& node, const std::string& text, const char* next) const;
  /// The path of a key; empty when it is absent or null.
  std::filesystem::path one(const JsonNode& section, const char* key) const;
  /// The paths of a key: a list, or one alone.
  std::vector<std::filesystem::path> all(const JsonNode& section, const char* key) const;

 private:
  std::filesystem::path folder_;
  std::vector<std::filesystem::path>* absent_;
};

/// As a run file has them.
nlohmann::ordered_json path_or_null(const std::filesystem::path& path);
nlohmann::ordered_json texts_of(const std::vector<std::filesystem::path>& paths);

} // namespace trireme::config
