#pragma once

#include <trireme/base/error.h>
#include <trireme/base/json.h>

#include <string>

// The places that errors about two keys name.
namespace trireme::config {

/// The value of section.key, or the section where the key is absent: both have a place.
inline const JsonNode& place(const JsonNode& root, const char* section, const char* key) {
  const JsonNode* found = root.find(section);
  if (found == nullptr) {
    return root;
  }
  const JsonNode* value = found->find(key);
  return value == nullptr ? *found : *value;
}

/// "model.hidden at run.json:3:14".
inline std::string named(const JsonNode& node) {
  return concat(node.path(), " at ", node.where());
}

} // namespace trireme::config
