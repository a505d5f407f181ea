#include <trireme/data/byte_level_bpe.h>

#include <trireme/base/error.h>
#include <trireme/data/byte_level_bpe_split.h>

#include <algorithm>
#include <limits>
#include <list>
#include <queue>

namespace trireme::data {
namespace {

// No real file has more; a wrong id must not allocate gigabytes.
constexpr int32_t kMostTokens = 1 << 21;

// Positions in a word are 32-bit numbers.
constexpr size_t kMostBytesOfAWord = std::numeric_limits<int32_t>::max();

constexpr size_t kMostReserved = size_t{1} << 24;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// A word while it is merged: symbols in a doubly linked list over an array.
struct Symbol {
  int32_t id;
  int32_t previous;
  int32_t next;
};

struct Candidate {
  int32_t rank;
  int32_t position;
  int32_t left;
  int32_t right;
  int32_t result;
  // The lowest rank first, then the leftmost; std::priority_queue pops the largest.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

} // namespace

// Caches where a word's ids are in the output. Keys point into the text that is being encoded.
class ByteLevelBpe::WordCache {
 public:
  struct Span {
    size_t begin;
    size_t size;
  };
  std::unordered_map<std::string_view, Span> words;
  // Pieces that were copied to insert a space before them.
  std::list<std::string> copies;
};

ByteLevelBpe::ByteLevelBpe(const ByteLevelBpeModel& model, std::string source)
    : source_(std::move(source)),
      add_prefix_space_(model.add_prefix_space),
      use_regex_(model.use_regex),
      ignore_merges_(model.ignore_merges),
      fuse_unk_(model.fuse_unk),
      unk_id_(model.unk_id) {
  const auto set_token = [&](int32_t id, const std::string& content, bool may_replace) {
    if (id < 0 || id >= kMostTokens) {
      throw InputError("tokenizer", concat(source_, ": the id ", id, " is not in 0 to ", kMostTokens - 1));
    }
    if (static_cast<size_t>(id) >= tokens_.size()) {
      tokens_.resize(id + 1);
      known_.resize(id + 1);
    }
    if (known_[id] && !may_replace) {
      throw InputError("tokenizer", concat(source_, ": two tokens have the id ", id));
    }
    tokens_[id] = content;
    known_[id] = true;
  };
  byte_ids_.fill(-1);
  for (const ByteLevelBpeModel::Token& token : model.vocab) {
    set_token(token.id, token.bytes, false);
    if (token.from_bytes && token.bytes.size() == 1) {
      byte_ids_[static_cast<unsigned char>(token.bytes[0])] = token.id;
    }
    if (token.from_bytes && ignore_merges_) {
      whole_words_.emplace(token.bytes, token.id);
    }
  }
  rules_.reserve(model.merges.size());
  for (size_t rank = 0; rank < model.merges.size(); ++rank) {
    const auto& merge = model.merges[rank];
    rules_.insert_or_assign(pair_key(merge.left, merge.right), Rule{static_cast<int32_t>(rank), merge.result});
  }
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  for (const AddedToken& token : model.added) {
    set_token(token.id, token.content, true);
    (token.normalized ? normalized : raw).push_back(token);
  }
  raw_added_ = AddedTokens(std::move(raw));
  normalized_added_ = AddedTokens(std::move(normalized));
}

std::vector<int32_t> ByteLevelBpe::encode(std::string_view text) const {
  std::vector<int32_t> out;
  out.reserve(std::min(text.size() / 3, kMostReserved));
  WordCache cache;
  for (const TextPart& outer : raw_added_.split(text)) {
    if (outer.id) {
      out.push_back(*outer.id);
      continue;
    }
    for (const TextPart& part : normalized_added_.split(outer.text)) {
      if (part.id) {
        out.push_back(*part.id);
      } else {
        encode_piece(part.text, cache, out);
      }
    }
  }
  return out;
}

void ByteLevelBpe::encode_piece(std::string_view piece, WordCache& cache, std::vector<int32_t>& out) const {
  if (add_prefix_space_ && piece.front() != ' ') {
    piece = cache.copies.emplace_back(concat(' ', piece));
  }
  for (size_t at = 0; at < piece.size();) {
    const size_t end = use_regex_ ? word_end(piece, at) : piece.size();
    const std::string_view word = piece.substr(at, end - at);
    at = end;
    if (word.size() > kMostBytesOfAWord) {
      throw InputError("tokenizer",
                       concat("the text has a word of ", word.size(), " bytes, and ", source_, " takes words of up to ",
                              kMostBytesOfAWord),
                       use_regex_ ? "Check that this is text: words end at white space."
                                  : "This tokenizer encodes a text as one word: encode it in parts.");
    }
    const auto [found, is_new] = cache.words.try_emplace(word);
    if (is_new) {
      const size_t begin = out.size();
      encode_word(word, out);
      found->second = {begin, out.size() - begin};
      continue;
    }
    for (size_t i = 0; i < found->second.size; ++i) {
      out.push_back(out[found->second.begin + i]);
    }
  }
}

void ByteLevelBpe::start_symbols(std::string_view word, std::vector<int32_t>& out) const {
  bool after_unknown = false;
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id < 0 && unk_id_ < 0) {
      throw InputError("tokenizer",
                       concat(source_, " has no token for byte ", static_cast<int>(static_cast<unsigned char>(c)),
                              " in \"", word.substr(0, 60), "\", and no unknown token"),
                       "Train the tokenizer with all 256 bytes in its initial alphabet.");
    }
    if (id >= 0 || !fuse_unk_ || !after_unknown) {
      out.push_back(id >= 0 ? id : unk_id_);
    }
    after_unknown = id < 0;
  }
}

void ByteLevelBpe::encode_word(std::string_view word, std::vector<int32_t>& out) const {
  if (ignore_merges_) {
    if (const auto found = whole_words_.find(std::string(word)); found != whole_words_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  std::vector<int32_t> ids;
  ids.reserve(word.size());
  start_symbols(word, ids);
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<Symbol> symbols(ids.size());
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t position) {
    const int32_t next = symbols[position].next;
    if (next < 0) {
      return;
    }
    const auto rule = rules_.find(pair_key(symbols[position].id, symbols[next].id));
    if (rule != rules_.end()) {
      queue.push({rule->second.rank, position, symbols[position].id, symbols[next].id, rule->second.result});
    }
  };
  for (int32_t i = 0; i < count; ++i) {
    symbols[i] = {ids[i], i - 1, i + 1 < count ? i + 1 : -1};
  }
  for (int32_t i = 0; i < count; ++i) {
    consider(i);
  }
  constexpr int32_t kGone = -1;
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.position];
    // Neighbours may have been merged since this pair was pushed.
    if (left.id != best.left || left.next < 0 || symbols[left.next].id != best.right) {
      continue;
    }
    Symbol& right = symbols[left.next];
    left.id = best.result;
    right.id = kGone;
    left.next = right.next;
    if (right.next >= 0) {
      symbols[right.next].previous = best.position;
    }
    consider(best.position);
    if (left.previous >= 0) {
      consider(left.previous);
    }
  }
  for (int32_t i = count == 0 ? -1 : 0; i >= 0; i = symbols[i].next) {
    out.push_back(symbols[i].id);
  }
}

std::string ByteLevelBpe::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<size_t>(ids[i]) >= tokens_.size() || !known_[ids[i]]) {
      throw InputError("tokenizer", concat("token ", i, " is ", ids[i], ", ", source_, " has no such id (ids are 0 to ",
                                           tokens_.size() - 1, ')'));
    }
    text += tokens_[ids[i]];
  }
  return text;
}

std::string ByteLevelBpe::describe() const {
  return concat("byte-level BPE (", tokens_.size(), " tokens, ", source_, ')');
}

} // namespace trireme::data
