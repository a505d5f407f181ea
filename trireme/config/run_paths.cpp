#include <trireme/config/run_paths.h>

#include <trireme/base/error.h>

namespace trireme::config {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

fs::path RunPaths::one(const JsonNode& node) const {
  return one(node, node.as_string());
}

fs::path RunPaths::one(const JsonNode& node, const std::string& text) const {
  return one(node, text,
             "A relative path starts at the folder of the run file, else at the working directory."
             " What the examples train on comes with \"trireme data fetch\".");
}

fs::path RunPaths::one(const JsonNode& node, const std::string& text, const char* next) const {
  if (text.empty()) {
    node.fail("the path is empty");
  }
  const fs::path beside = fs::absolute(folder_ / text).lexically_normal();
  const fs::path here = fs::absolute(text).lexically_normal();
  std::error_code ignored;
  if (fs::exists(beside, ignored)) {
    return beside;
  }
  if (fs::exists(here, ignored)) {
    return here;
  }
  if (absent_ == nullptr) {
    node.fail(concat("there is no file ", beside.string(),
                     here == beside ? "" : concat(", and no ", here.string(), " either")),
              next);
  }
  absent_->push_back(beside);
  return beside;
}

fs::path RunPaths::one(const JsonNode& section, const char* key) const {
  const JsonNode* node = section.find(key);
  return node == nullptr || node->is_null() ? fs::path() : one(*node);
}

std::vector<fs::path> RunPaths::all(const JsonNode& section, const char* key) const {
  std::vector<fs::path> out;
  const JsonNode* node = section.find(key);
  if (node == nullptr || node->is_null()) {
    return out;
  }
  if (node->kind() == JsonNode::Kind::string) {
    out.push_back(one(*node));
    return out;
  }
  for (const JsonNode& element : node->elements()) {
    out.push_back(one(element));
  }
  return out;
}

ordered_json path_or_null(const fs::path& path) {
  return path.empty() ? ordered_json(nullptr) : ordered_json(path.string());
}

ordered_json texts_of(const std::vector<fs::path>& paths) {
  ordered_json out = ordered_json::array();
  for (const fs::path& path : paths) {
    out.push_back(path.string());
  }
  return out;
}

} // namespace trireme::config
