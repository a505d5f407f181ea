// A tokenizer.json, and a text for it.
#include "fuzz.h"

#include <trireme/tokenizer/read_tokenizer.h>
#include <trireme/tokenizer/unicode.h>

using namespace trireme;
using namespace trireme::fuzz;

/// The file, and after a byte 0x01 a text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = text_of(data, size);
  const MemoryFile file(take_until(text, '\x01'));
  allow_input_error([&] {
    const auto tokenizer = tokenizer::read_tokenizer_json(file.path());
    const std::vector<int32_t> ids = tokenizer->encode(text);
    for (const int32_t id : ids) {
      require(id >= 0 && id < tokenizer->vocab_size(), "ids are of the vocabulary");
    }
    require(tokenizer->encode(text) == ids, "words that are remembered have the same ids");
    require(tokenizer->encode(tokenizer::replace_invalid_utf8(text)) == ids, "what is not UTF-8 is U+FFFD");
    static_cast<void>(tokenizer->decode(ids, /*skip_special_tokens=*/true)); // an expression may give up
    static_cast<void>(tokenizer->decode(ids));
  });
  return 0;
}
