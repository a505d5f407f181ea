// Every JSON file that a person writes goes through JsonNode.
#include "fuzz.h"

#include <trireme/base/json.h>

#include <nlohmann/json.hpp>

namespace {

using trireme::JsonNode;
using namespace trireme::fuzz;

// `asked`: values that were asked for what they may not be, which ends in an exception; a few of each input, for speed.
void visit(const JsonNode& node, int& asked) {
  require(!node.where().empty(), "every value has a place");
  if (asked++ < 8) {
    allow_input_error([&] { static_cast<void>(node.as_bool()); });
    allow_input_error([&] { static_cast<void>(node.as_integer()); });
    allow_input_error([&] { static_cast<void>(node.as_real()); });
    allow_input_error([&] { static_cast<void>(node.as_string()); });
  }
  allow_input_error([&] {
    for (const auto& [key, value] : node.members()) {
      require(node.find(key) == &value, "a member is found by its key");
      visit(value, asked);
    }
  });
  allow_input_error([&] {
    for (const JsonNode& element : node.elements()) {
      visit(element, asked);
    }
  });
}

} // namespace

/// The JSON, and after bytes 0x01 what --set would get: "path=value".
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  allow_input_error([&] {
    std::string_view rest = text_of(data, size);
    JsonNode root = JsonNode::parse(take_until(rest, '\x01'), "fuzz.json");
    int asked = 0;
    visit(root, asked);
    const std::string plain = root.plain().dump();
    require_no_error("what was read can be read again", [&] {
      require(JsonNode::parse(plain, "again").plain().dump() == plain, "what was read is read again as the same");
    });
    while (!rest.empty()) {
      std::string_view assignment = take_until(rest, '\x01');
      const std::string path(take_until(assignment, '='));
      allow_input_error([&] { root.set(path, std::string(assignment)); });
      int asked = 0;
      visit(root, asked);
    }
  });
  return 0;
}
