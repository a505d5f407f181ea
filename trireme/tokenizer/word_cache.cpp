#include <trireme/tokenizer/word_cache.h>

#include <cstring>

namespace trireme::tokenizer {
namespace {

constexpr size_t kSlots = size_t{1} << 16;
constexpr size_t kMostWords = kSlots * 5 / 8;
constexpr size_t kMostBytesOfKeys = size_t{4} << 20;

uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_of(std::string_view word) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  uint64_t hash = word.size() * kFactor;
  const char* at = word.data();
  size_t left = word.size();
  uint64_t eight = 0;
  for (; left > 8; left -= 8, at += 8) {
    std::memcpy(&eight, at, 8);
    hash = mix(hash ^ eight, kFactor);
  }
  eight = 0;
  std::memcpy(&eight, at, left);
  return mix(hash ^ eight, 0xd6e8feb86659fd93);
}

} // namespace

WordCache::WordCache() : entries_(kSlots) {}

WordCache::Found WordCache::find(std::string_view word) {
  hash_ = hash_of(word);
  for (slot_ = hash_ % kSlots; entries_[slot_].key_bytes != 0; slot_ = (slot_ + 1) % kSlots) {
    const Entry& entry = entries_[slot_];
    if (entry.hash == hash_ && entry.key_bytes == word.size() &&
        std::memcmp(keys_.data() + entry.key, word.data(), word.size()) == 0) {
      return {true, std::span(ids_).subspan(entry.ids, entry.num_ids)};
    }
  }
  return {false, {}};
}

void WordCache::insert(std::string_view word, std::span<const int32_t> ids) {
  if (used_ == kMostWords || keys_.size() > kMostBytesOfKeys) {
    forget();
    slot_ = hash_ % kSlots;
  }
  ++used_;
  entries_[slot_] = {hash_, static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(ids_.size()),
                     static_cast<uint32_t>(ids.size()), static_cast<uint32_t>(word.size())};
  keys_.insert(keys_.end(), word.begin(), word.end());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

void WordCache::forget() {
  entries_.assign(kSlots, Entry{});
  keys_.clear();
  ids_.clear();
  used_ = 0;
}

} // namespace trireme::tokenizer
