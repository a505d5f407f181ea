// GPT-2's pair of files, and a text for them.
#include "fuzz.h"

#include <trireme/tokenizer/read_tokenizer.h>
#include <trireme/tokenizer/unicode.h>

using namespace trireme;
using namespace trireme::fuzz;

/// vocab.json, and after bytes 0x01 merges.txt and a text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = text_of(data, size);
  const MemoryFile vocab(take_until(text, '\x01'));
  const MemoryFile merges(take_until(text, '\x01'));
  allow_input_error([&] {
    const auto tokenizer = tokenizer::read_vocab_and_merges(vocab.path(), merges.path());
    require(tokenizer->decode(tokenizer->encode(text)) == tokenizer::replace_invalid_utf8(text),
            "decode undoes encode");
  });
  return 0;
}
