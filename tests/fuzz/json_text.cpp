// The text in a JSON line.
#include "fuzz.h"

#include <trireme/data/tokenize/json_text.h>

#include <nlohmann/json.hpp>

using namespace trireme;
using namespace trireme::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line = text_of(data, size);
  allow_input_error([&] {
    const std::string text = data::text_of_json(line, "text", "lines.jsonl:1");
    const auto value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    require(value.is_object() && value.at("text") == text, "it is the text that a JSON parser finds");
  });
  return 0;
}
