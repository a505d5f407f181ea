#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

/// Remembers the ids of words. When it is full it forgets everything. For one thread at a time.
class WordCache {
 public:
  WordCache();

  /// Longer words are not remembered.
  static constexpr size_t kMostBytes = 200;

  struct Found {
    bool found;
    std::span<const int32_t> ids;
  };
  /// The ids of `word`. If it is not here, insert() may follow, with the same word.
  Found find(std::string_view word);
  /// Adds the word of the find() before, and its ids.
  void insert(std::string_view word, std::span<const int32_t> ids);

 private:
  struct Entry {
    uint64_t hash = 0;
    uint32_t key = 0; // place in keys_
    uint32_t ids = 0; // place in ids_
    uint32_t num_ids = 0;
    uint32_t key_bytes = 0; // 0: free
  };
  void forget();

  std::vector<Entry> entries_;
  std::vector<char> keys_;
  std::vector<int32_t> ids_;
  size_t used_ = 0;
  uint64_t hash_ = 0; // of the last find()
  size_t slot_ = 0;
};

} // namespace trireme::tokenizer
