#include <trireme/data/token_cache/encode_text.h>

#include <trireme/data/tokenize/block_maker.h>
#include <trireme/data/tokenize/encode_blocks.h>

#include <exception>
#include <utility>

namespace trireme::data {
namespace {

constexpr const char* kTextName = "the text";

// Cuts the text into blocks. Reads one piece ahead, to know which is the last.
TextBytes read_blocks(const std::function<bool(std::string&)>& next, const GiveBlock& give) {
  TextBytes bytes;
  bool goes_on = true;
  BlockMaker maker([&](Block block) { goes_on = give(std::move(block)); });
  std::string piece;
  std::string ahead;
  bool begins = true;
  for (bool there = next(piece); there && goes_on; begins = false) {
    there = next(ahead);
    bytes.add(piece);
    maker.add({std::move(piece), begins, /*ends=*/!there});
    piece = std::exchange(ahead, {});
  }
  maker.flush();
  return bytes;
}

} // namespace

TextBytes encode_text(const std::function<bool(std::string& piece)>& next, const tokenizer::Tokenizer& tokenizer,
                      int threads, const PartJoiner::Emit& emit) {
  const LineEncoder no_lines(tokenizer, "", {}); // the text is plain
  TextBytes bytes;
  PartJoiner joiner(tokenizer, emit);
  encode_blocks(
      threads, [&](const GiveBlock& give) { bytes = read_blocks(next, give); },
      [&](Block& block) { encode_block(block, tokenizer, no_lines, kTextName); },
      [&](Block block) {
        if (block.error) {
          std::rethrow_exception(block.error);
        }
        if (block.is_part) {
          joiner.add(std::move(block), kTextName);
        } else {
          emit(block.ids);
        }
      });
  return bytes;
}

} // namespace trireme::data
