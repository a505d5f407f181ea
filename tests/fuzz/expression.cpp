// A regular expression as tokenizers have it, and a text.
#include "fuzz.h"

#include <trireme/tokenizer/expression.h>
#include <trireme/tokenizer/unicode.h>

using namespace trireme;
using namespace trireme::fuzz;

/// The expression, and after a byte 0x01 a text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest = text_of(data, size);
  // JSON has no others.
  const std::string expression = tokenizer::replace_invalid_utf8(take_until(rest, '\x01'));
  const std::string text = tokenizer::replace_invalid_utf8(rest.substr(0, 200));
  allow_input_error([&] {
    const tokenizer::Expression compiled(expression, "fuzz");
    tokenizer::Matches matches(compiled, text);
    size_t done = 0;
    while (const auto match = matches.next()) {
      require(match->begin >= done && match->end >= match->begin && match->end <= text.size(), "matches are in order");
      require(tokenizer::valid_utf8_prefix(std::string_view(text).substr(match->begin, match->end - match->begin)) ==
                  match->end - match->begin,
              "matches are of whole characters");
      done = match->end;
    }
  });
  return 0;
}
