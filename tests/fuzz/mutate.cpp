#include "mutate.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace trireme::fuzz {
namespace {

constexpr const char* kNumbers[] = {"0",
                                    "-1",
                                    "1",
                                    "2",
                                    "255",
                                    "256",
                                    "65536",
                                    "2147483647",
                                    "2147483648",
                                    "-2147483648",
                                    "4294967296",
                                    "9223372036854775807",
                                    "9223372036854775808",
                                    "18446744073709551615",
                                    "1e308",
                                    "1e999",
                                    "-1e308",
                                    "5e-324",
                                    "0.1",
                                    "1e9",
                                    "null",
                                    "true",
                                    "\"\"",
                                    "[]",
                                    "{}"};

bool of_word(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_' || letter == '"';
}

} // namespace

Mutator::Mutator(std::vector<std::string> corpus, uint64_t seed, size_t most_bytes)
    : corpus_(std::move(corpus)), random_(seed), most_bytes_(most_bytes) {
  for (const std::string& input : corpus_) {
    for (size_t at = 0; at < input.size();) {
      size_t end = at;
      while (end < input.size() && of_word(input[end])) {
        ++end;
      }
      if (end - at >= 2 && end - at <= 40) {
        words_.push_back(input.substr(at, end - at));
      }
      at = end + 1;
    }
  }
  std::sort(words_.begin(), words_.end());
  words_.erase(std::unique(words_.begin(), words_.end()), words_.end());
}

size_t Mutator::below(size_t limit) {
  return limit == 0 ? 0 : random_() % limit; // std's distributions differ between libraries
}

void Mutator::insert(std::string& input, const std::string& what) {
  input.insert(below(input.size() + 1), what);
}

void Mutator::change_number(std::string& input) {
  const auto is_digit = [](char letter) { return letter >= '0' && letter <= '9'; };
  const auto start = input.begin() + static_cast<std::ptrdiff_t>(below(input.size()));
  const auto first = std::find_if(start, input.end(), is_digit);
  const auto last = std::find_if_not(first, input.end(), is_digit);
  input.replace(first, last, kNumbers[below(std::size(kNumbers))]);
}

void Mutator::change(std::string& input) {
  const size_t at = below(input.size());
  const size_t length = 1 + below(std::min<size_t>(input.size() - at, size_t{1} << below(8)));
  switch (below(12)) {
    case 0:
      input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
      break;
    case 1:
      input[at] = static_cast<char>(random_());
      break;
    case 2: {
      constexpr char kEdges[] = {0, 1, 2, '\x7f', '\x80', '\xff', '"', '{', '[', '\n', ' ', ','};
      input[at] = kEdges[below(std::size(kEdges))];
      break;
    }
    case 3:
      input.erase(at, length);
      break;
    case 4:
      insert(input, input.substr(at, length));
      break;
    case 5:
      std::reverse(input.begin() + static_cast<std::ptrdiff_t>(at),
                   input.begin() + static_cast<std::ptrdiff_t>(at + length));
      break;
    case 6:
    case 7:
      change_number(input);
      break;
    case 8:
      if (!words_.empty()) {
        insert(input, words_[below(words_.size())]);
      }
      break;
    case 9: { // the front of this one and the back of another one
      const std::string& other = corpus_[below(corpus_.size())];
      input = input.substr(0, at) + other.substr(below(other.size()));
      break;
    }
    case 10:
      input.resize(at);
      break;
    default: { // four bytes as a length or a size would stand there
      constexpr uint32_t kSizes[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x00010000, 0x01000000};
      const uint32_t size = kSizes[below(std::size(kSizes))];
      for (size_t byte = 0; byte < 4 && at + byte < input.size(); ++byte) {
        input[at + byte] = static_cast<char>(size >> (8 * byte));
      }
    }
  }
}

std::string Mutator::next() {
  std::string input = corpus_[below(corpus_.size())];
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    if (input.empty()) {
      input = static_cast<char>(random_());
    }
    change(input);
  }
  input.resize(std::min(input.size(), most_bytes_));
  return input;
}

} // namespace trireme::fuzz
