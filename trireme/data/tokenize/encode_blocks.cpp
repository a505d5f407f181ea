#include <trireme/data/tokenize/encode_blocks.h>

#include <trireme/data/tokenize/ordered_work.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::data {

void encode_blocks(int threads, const std::function<void(const GiveBlock& give)>& make,
                   const std::function<void(Block&)>& encode, const std::function<void(Block)>& take) {
  constexpr size_t kMostUnderWay = 128;
  constexpr size_t kMostBytesUnderWay = size_t{32} << 20;
  OrderedWork<Block> work(std::min(kMostUnderWay, 2 * static_cast<size_t>(threads) + 2), kMostBytesUnderWay);
  struct StopAtEnd {
    OrderedWork<Block>& work;
    ~StopAtEnd() { work.stop(); }
  };
  std::vector<std::jthread> running;
  const StopAtEnd stop{work}; // before the threads are joined
  running.emplace_back([&] {
    try {
      make([&](Block block) {
        const size_t bytes = block.text.size();
        return work.push(std::move(block), bytes);
      });
    } catch (...) {
      Block failed;
      failed.error = std::current_exception();
      work.push(std::move(failed), 0);
    }
    work.close();
  });
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      work.work_on([&](Block& block) {
        if (!block.error) {
          encode(block);
        }
      });
    });
  }
  while (std::optional<Block> block = work.pop()) {
    take(*std::move(block));
  }
}

} // namespace trireme::data
