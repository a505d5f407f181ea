#include <trireme/data/token_cache/encode_text.h>

#include <trireme/data/tokenize/block_maker.h>
#include <trireme/data/tokenize/ordered_work.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::data {
namespace {

constexpr const char* kTextName = "the text";

// Cuts the text into blocks. Reads one piece ahead, to know which is the last.
TextBytes read_blocks(const std::function<bool(std::string&)>& next, OrderedWork<Block>& work) {
  TextBytes bytes;
  bool goes_on = true;
  BlockMaker maker([&](Block block) { goes_on = work.push(std::move(block)); });
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
  constexpr size_t kMostUnderWay = 128;
  OrderedWork<Block> work(std::min(kMostUnderWay, 2 * static_cast<size_t>(threads) + 2));
  struct StopAtEnd {
    OrderedWork<Block>& work;
    ~StopAtEnd() { work.stop(); }
  };
  const LineEncoder no_lines(tokenizer, "", {}); // the text is plain
  TextBytes bytes;
  {
    std::vector<std::jthread> running;
    const StopAtEnd stop{work}; // before the threads are joined
    running.emplace_back([&] {
      try {
        bytes = read_blocks(next, work);
      } catch (...) {
        Block failed;
        failed.error = std::current_exception();
        work.push(std::move(failed));
      }
      work.close();
    });
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&] {
        work.work_on([&](Block& block) {
          if (!block.error) {
            encode_block(block, tokenizer, no_lines, kTextName);
          }
        });
      });
    }
    PartJoiner joiner(tokenizer, emit);
    while (std::optional<Block> block = work.pop()) {
      if (block->error) {
        std::rethrow_exception(block->error);
      }
      if (block->is_part) {
        joiner.add(std::move(*block), kTextName);
      } else {
        emit(block->ids);
      }
    }
  }
  return bytes;
}

} // namespace trireme::data
