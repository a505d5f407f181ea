#include <trireme/base/json.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>

namespace trireme {

ObjectReader::ObjectReader(const JsonNode& node) : node_(node) {
  node.members(); // fails when it is not an object
}

const JsonNode* ObjectReader::find(const std::string& key) {
  known_.push_back(key);
  return node_.find(key);
}

const JsonNode& ObjectReader::require(const std::string& key) {
  const JsonNode* found = find(key);
  if (found == nullptr) {
    node_.fail(concat("the key \"", key, "\" is missing"));
  }
  return *found;
}

std::string ObjectReader::word(const std::string& key, const std::string& default_value,
                               const std::vector<std::string>& allowed) {
  const JsonNode* found = find(key);
  if (found == nullptr || found->is_null()) {
    return default_value;
  }
  const std::string& text = found->as_string();
  if (std::find(allowed.begin(), allowed.end(), text) == allowed.end()) {
    found->fail(concat('"', text, "\" is not one of the choices"), did_you_mean(text, allowed));
  }
  return text;
}

bool ObjectReader::is_note(std::string_view key) {
  return key.starts_with("x_") || key.starts_with("_comment") || key == "$schema";
}

void ObjectReader::finish() const {
  for (const auto& [key, value] : node_.members()) {
    if (!is_note(key) && std::find(known_.begin(), known_.end(), key) == known_.end()) {
      value.fail("unknown key", did_you_mean(key, known_));
    }
  }
}

template <>
bool ObjectReader::convert<bool>(const JsonNode& node) {
  return node.as_bool();
}
template <>
int64_t ObjectReader::convert<int64_t>(const JsonNode& node) {
  return node.as_integer();
}
template <>
double ObjectReader::convert<double>(const JsonNode& node) {
  return node.as_real();
}
template <>
std::string ObjectReader::convert<std::string>(const JsonNode& node) {
  return node.as_string();
}

namespace {

template <typename T, typename Convert>
std::vector<T> convert_all(const JsonNode& node, Convert convert) {
  std::vector<T> out;
  for (const JsonNode& element : node.elements()) {
    out.push_back(convert(element));
  }
  return out;
}

} // namespace

template <>
std::vector<int64_t> ObjectReader::convert<std::vector<int64_t>>(const JsonNode& node) {
  return convert_all<int64_t>(node, [](const JsonNode& n) { return n.as_integer(); });
}
template <>
std::vector<double> ObjectReader::convert<std::vector<double>>(const JsonNode& node) {
  return convert_all<double>(node, [](const JsonNode& n) { return n.as_real(); });
}
template <>
std::vector<std::string> ObjectReader::convert<std::vector<std::string>>(const JsonNode& node) {
  return convert_all<std::string>(node, [](const JsonNode& n) { return n.as_string(); });
}

} // namespace trireme
