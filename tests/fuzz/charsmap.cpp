// The map of characters of a sentencepiece model, as base64, and a text.
#include "fuzz.h"

#include <trireme/tokenizer/precompiled.h>
#include <trireme/tokenizer/unicode.h>

using namespace trireme;
using namespace trireme::fuzz;

/// The map, and after a byte 0x01 a text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest = text_of(data, size);
  const std::string_view map = take_until(rest, '\x01');
  allow_input_error([&] {
    const tokenizer::Precompiled normalizer(map, "fuzz");
    std::string text = tokenizer::replace_invalid_utf8(rest);
    normalizer.apply(text);
    require(tokenizer::valid_utf8_prefix(text) == text.size(), "the text stays UTF-8");
  });
  return 0;
}
