// A tokenizer.json, and a text for it.
#include "fuzz.h"

#include <trireme/data/byte_level_bpe.h>

using namespace trireme;
using namespace trireme::fuzz;

/// The file, and after a byte 0x01 a text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = text_of(data, size);
  const MemoryFile file(take_until(text, '\x01'));
  allow_input_error([&] {
    const auto tokenizer = data::read_tokenizer_json(file.path());
    const std::vector<int32_t> ids = tokenizer->encode(text);
    for (const int32_t id : ids) {
      require(id >= 0 && id < tokenizer->vocab_size(), "ids are of the vocabulary");
    }
    require_no_error("what was encoded can be decoded", [&] { static_cast<void>(tokenizer->decode(ids)); });
  });
  return 0;
}
