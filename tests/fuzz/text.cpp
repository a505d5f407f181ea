// Any text for a tokenizer that is in order: the readers of UTF-8 and of words.
#include "fuzz.h"

#include <trireme/data/byte_level_bpe.h>

#include <memory>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

/// A token for every byte, some merges, and added tokens that eat space on either side.
data::ByteLevelBpe make(bool use_regex) {
  data::ByteLevelBpeModel model;
  for (int byte = 0; byte < 256; ++byte) {
    model.vocab.push_back({std::string(1, static_cast<char>(byte)), byte});
  }
  int32_t next = 256;
  for (const auto& [left, right] :
       {std::pair(int{'a'}, int{'b'}), {int{' '}, 256}, {256, 256}, {0xe2, 0x80}, {int{'\''}, int{'s'}}}) {
    model.vocab.push_back(
        {model.vocab[static_cast<size_t>(left)].bytes + model.vocab[static_cast<size_t>(right)].bytes, next});
    model.merges.push_back({left, right, next});
    ++next;
  }
  model.use_regex = use_regex;
  model.added.push_back({.content = "<e>", .id = next});
  model.added.push_back({.content = "<\xc3\xa9>", .id = next + 1, .normalized = false});
  return {model, "fuzz"};
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const data::ByteLevelBpe words = make(true);
  static const data::ByteLevelBpe pieces = make(false);
  const std::string_view text = text_of(data, size);
  for (const data::ByteLevelBpe* tokenizer : {&words, &pieces}) {
    require(tokenizer->decode(tokenizer->encode(text)) == text, "decode undoes encode");
  }
  return 0;
}
