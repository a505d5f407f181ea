#include <trireme/tokenizer/bpe.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>
#include <bit>
#include <queue>

namespace trireme::tokenizer {
namespace {

constexpr std::string_view kLowerBlock = "\xe2\x96\x81"; // U+2581, sentencepiece's space

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t slot_of(uint64_t pair) {
  return (pair * 0x9e3779b97f4a7c15) >> 20;
}

bool has_inner_block(std::string_view token) {
  size_t at = token.find(kLowerBlock);
  while (at != std::string_view::npos) {
    if (at >= kLowerBlock.size() ? token.substr(at - kLowerBlock.size(), kLowerBlock.size()) != kLowerBlock : at > 0) {
      return true;
    }
    at = token.find(kLowerBlock, at + 1);
  }
  return false;
}

} // namespace

// A word while it is merged: symbols in a doubly linked list over an array.
struct Bpe::Symbol {
  int32_t id;
  int32_t previous;
  int32_t next;
};

struct Bpe::Candidate {
  int32_t rank;
  int32_t position;
  int32_t result;
  // The lowest rank first, then the leftmost; heaps of the standard library have the largest on top.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

Bpe::Bpe(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options, std::string source)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)), source_(std::move(source)) {
  rules_.resize(std::bit_ceil(2 * merges.size() + 2));
  mask_ = rules_.size() - 1;
  bool inner_block = false;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    add_rule(pair_key(merge.left, merge.right), static_cast<int32_t>(rank), merge.result);
    inner_block = inner_block || has_inner_block(vocabulary_.tokens()[static_cast<size_t>(merge.result)]);
  }
  low_ids_.fill(-1);
  const std::vector<std::string>& tokens = vocabulary_.tokens();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty() || char_at(tokens[id], 0).bytes != tokens[id].size()) {
      continue;
    }
    const char32_t code = char_at(tokens[id], 0).code;
    (code < low_ids_.size() ? low_ids_[code] : high_ids_[code]) = static_cast<int32_t>(id);
  }
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = vocabulary_.id_of(byte_token(static_cast<unsigned char>(byte))).value_or(-1);
  }
  has_parts_ = !inner_block && vocabulary_.id_of(kLowerBlock) && !options_.ignore_merges &&
               options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
}

void Bpe::add_rule(uint64_t pair, int32_t rank, int32_t result) {
  uint64_t at = slot_of(pair) & mask_;
  while (rules_[at].pair != ~uint64_t{0} && rules_[at].pair != pair) {
    at = (at + 1) & mask_;
  }
  rules_[at] = {pair, rank, result};
}

const Bpe::Rule* Bpe::find_rule(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  for (uint64_t at = slot_of(pair) & mask_;; at = (at + 1) & mask_) {
    if (rules_[at].pair == pair) {
      return &rules_[at];
    }
    if (rules_[at].pair == ~uint64_t{0}) {
      return nullptr;
    }
  }
}

size_t Bpe::part_end(std::string_view word, size_t at) const {
  if (!has_parts_) {
    return word.size();
  }
  size_t end = at;
  while (word.substr(end, kLowerBlock.size()) == kLowerBlock) {
    end += kLowerBlock.size();
  }
  return std::min(word.find(kLowerBlock, end), word.size());
}

std::optional<int32_t> Bpe::char_id(std::string_view word, size_t at, size_t bytes) const {
  const bool prefix = at > 0 && !options_.continuing_subword_prefix.empty();
  const bool suffix = at + bytes == word.size() && !options_.end_of_word_suffix.empty();
  if (prefix || suffix) {
    return vocabulary_.id_of(concat(prefix ? options_.continuing_subword_prefix : "", word.substr(at, bytes),
                                    suffix ? options_.end_of_word_suffix : ""));
  }
  const char32_t code = char_at(word, at).code;
  if (code < low_ids_.size()) {
    return low_ids_[code] < 0 ? std::nullopt : std::optional(low_ids_[code]);
  }
  const auto found = high_ids_.find(code);
  return found == high_ids_.end() ? std::nullopt : std::optional(found->second);
}

// `pending`: unknown tokens that are not yet in `out`. Bytes go before them, as in Hugging Face's tokenizers.
void Bpe::unknown(std::string_view word, std::string_view chars, size_t& pending, std::vector<int32_t>& out) const {
  const auto has_token = [this](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
  if (options_.byte_fallback && std::ranges::all_of(chars, has_token)) {
    for (const char c : chars) {
      out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    }
    return;
  }
  if (options_.unk_id < 0) {
    throw InputError("tokenizer",
                     concat(source_, " has no token for \"", printable(chars), "\" in \"",
                            printable(word.substr(0, 60)), "\", and no unknown token"),
                     "Train the tokenizer with all 256 bytes in its initial alphabet, or with an unknown token.");
  }
  if (pending > 0 && !options_.fuse_unk) {
    out.push_back(options_.unk_id);
  }
  pending = 1;
}

void Bpe::start_symbols(std::string_view word, std::vector<int32_t>& out) const {
  size_t pending = 0;
  for (size_t at = 0; at < word.size();) {
    const size_t bytes = char_at(word, at).bytes;
    if (const auto id = char_id(word, at, bytes)) {
      out.insert(out.end(), pending, options_.unk_id);
      pending = 0;
      out.push_back(*id);
    } else {
      std::string chars(word.substr(at, bytes));
      if (at > 0) {
        chars.insert(0, options_.continuing_subword_prefix);
      }
      if (at + bytes == word.size()) {
        chars += options_.end_of_word_suffix;
      }
      unknown(word, chars, pending, out);
    }
    at += bytes;
  }
  out.insert(out.end(), pending, options_.unk_id);
}

void Bpe::merge(std::vector<int32_t>& ids, size_t begin) const {
  const auto count = static_cast<int32_t>(ids.size() - begin);
  thread_local std::vector<Symbol> symbols;
  thread_local std::vector<Candidate> heap;
  symbols.clear();
  heap.clear();
  const auto consider = [&](int32_t position) {
    const int32_t next = symbols[static_cast<size_t>(position)].next;
    if (next < 0) {
      return false;
    }
    const Rule* const rule =
        find_rule(symbols[static_cast<size_t>(position)].id, symbols[static_cast<size_t>(next)].id);
    if (rule != nullptr) {
      heap.push_back({rule->rank, position, rule->result});
    }
    return rule != nullptr;
  };
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back({ids[begin + static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (int32_t i = 0; i < count; ++i) {
    consider(i);
  }
  std::ranges::make_heap(heap, std::less<>());
  constexpr int32_t kGone = -1;
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::less<>());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(best.position)];
    if (left.id == kGone || left.next < 0) {
      continue;
    }
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    // The neighbours may have been merged since this pair was found. If what they are now makes the same token, this is
    // its turn all the same: so does Hugging Face's tokenizers.
    const Rule* const rule = find_rule(left.id, right.id);
    if (rule == nullptr || rule->result != best.result) {
      continue;
    }
    left.id = best.result;
    right.id = kGone;
    left.next = right.next;
    if (right.next >= 0) {
      symbols[static_cast<size_t>(right.next)].previous = best.position;
    }
    if (left.previous >= 0 && consider(left.previous)) {
      std::ranges::push_heap(heap, std::less<>());
    }
    if (consider(best.position)) {
      std::ranges::push_heap(heap, std::less<>());
    }
  }
  ids.resize(begin);
  for (int32_t i = count == 0 ? -1 : 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    ids.push_back(symbols[static_cast<size_t>(i)].id);
  }
  // A word of megabytes must not keep its memory.
  constexpr size_t kKept = 1 << 16;
  if (symbols.capacity() > kKept) {
    symbols = {};
    heap = {};
  }
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& out) const {
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_.id_of(word)) {
      out.push_back(*id);
      return;
    }
  }
  const size_t begin = out.size();
  start_symbols(word, out);
  merge(out, begin);
}

} // namespace trireme::tokenizer
