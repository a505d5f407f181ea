// The document of a JSON line: the text, prompt or messages that a JSON parser finds.
#include "fuzz.h"

#include <trireme/data/tokenize/json_line.h>

#include <nlohmann/json.hpp>

using namespace trireme;
using namespace trireme::fuzz;
using data::LineFields;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line = text_of(data, size);
  for (const LineFields fields : {LineFields::any, LineFields::text, LineFields::prompt, LineFields::messages}) {
    allow_input_error([&] {
      const data::JsonLine read = data::read_json_line(line, {.fields = fields}, "lines.jsonl:1");
      require(fields == LineFields::any || read.fields == fields, "it reads the wanted keys");
      const auto value = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
      require(value.is_object(), "a line is an object");
      switch (read.fields) {
        case LineFields::any:
          require(false, "a document has its fields");
          break;
        case LineFields::text:
          require(value.at("text") == read.text, "it is the text that a JSON parser finds");
          break;
        case LineFields::prompt:
          require(value.at("prompt") == read.text.substr(0, read.response_begin) &&
                      value.at("response") == read.text.substr(read.response_begin),
                  "it is the prompt and the response that a JSON parser finds");
          break;
        case LineFields::messages:
          require(value.at("messages") == read.messages && read.messages.is_array() && !read.messages.empty(),
                  "they are the messages that a JSON parser finds");
          break;
      }
    });
  }
  return 0;
}
