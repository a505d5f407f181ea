#include "bench_tokenizer.h"

#include <trireme/base/cores.h>
#include <trireme/base/file.h>
#include <trireme/tokenizer/tokenizer.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <vector>

namespace trireme::tools {

int bench_tokenizer(const BenchTokenizerCommand& command) {
  const auto tokenizer = tokenizer::make_tokenizer(command.tokenizer);
  const std::string text = read_file(command.text);
  std::vector<int64_t> threads = command.threads;
  if (threads.empty()) {
    threads = {1, usable_cores()};
    threads.resize(threads[1] == 1 ? 1 : 2);
  }
  if (!command.json) {
    std::cout << "threads   MB/s        ids\n";
  }
  for (const int64_t count : threads) {
    std::vector<double> seconds;
    size_t ids = 0;
    // The first one fills the memory of words.
    for (int64_t i = 0; i <= command.repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      ids = tokenizer->encode_with_threads(text, static_cast<int>(count)).size();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::sort(seconds.begin() + 1, seconds.end());
    const double median = seconds[1 + (seconds.size() - 1) / 2];
    const double rate = static_cast<double>(text.size()) / median / 1e6;
    if (command.json) {
      std::cout << nlohmann::json{{"impl", "trireme"}, {"threads", count},   {"bytes", text.size()},
                                  {"ids", ids},        {"ms", 1e3 * median}, {"mb_per_s", rate}}
                << '\n';
    } else {
      std::cout << std::setw(7) << count << std::setw(7) << std::fixed << std::setprecision(1) << rate << std::setw(11)
                << ids << '\n';
    }
  }
  return 0;
}

} // namespace trireme::tools
