#include <trireme/tokenizer/unigram.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/part_json.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>
#include <limits>

namespace trireme::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10;
constexpr size_t kMostBytesOfAWord = std::numeric_limits<int32_t>::max();

// The best tokens of the bytes before a place.
struct Best {
  double score = 0;
  int32_t id = 0;
  int32_t begin = -1; // where its last token begins; -1: none ends here
};

} // namespace

Unigram::Unigram(const std::vector<Piece>& pieces, int32_t unk_id, bool byte_fallback, std::string source)
    : unk_id_(unk_id), byte_fallback_(byte_fallback), source_(std::move(source)) {
  double least = std::numeric_limits<double>::infinity();
  for (const Piece& piece : pieces) {
    if (!piece.token.empty()) { // of equal tokens the last counts
      trie_.add(piece.token, static_cast<int32_t>(tokens_.size()));
    }
    tokens_.push_back(piece.token);
    scores_.push_back(piece.score);
    least = std::min(least, piece.score);
  }
  unk_score_ = least - kUnknownPenalty;
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = id_of(byte_token(static_cast<unsigned char>(byte))).value_or(-1);
  }
}

std::optional<int32_t> Unigram::id_of(std::string_view token) const {
  const uint32_t node = trie_.walk(Trie::kRoot, token);
  return node == Trie::kNowhere || trie_.value(node) < 0 ? std::nullopt : std::optional(trie_.value(node));
}

// The ids of characters of which no token was found, the last first.
void Unigram::unknown(std::string_view chars, std::vector<int32_t>& reversed) const {
  if (const auto id = id_of(chars)) { // several unknown characters may be a token together
    reversed.push_back(*id);
    return;
  }
  const auto has_token = [this](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
  if (!byte_fallback_ || !std::ranges::all_of(chars, has_token)) {
    reversed.push_back(unk_id_);
    return;
  }
  for (size_t i = chars.size(); i-- > 0;) {
    reversed.push_back(byte_ids_[static_cast<unsigned char>(chars[i])]);
  }
}

void Unigram::encode(std::string_view word, std::vector<int32_t>& out) const {
  if (word.size() > kMostBytesOfAWord) {
    throw InputError("tokenizer",
                     concat("the text has a word of ", word.size(), " bytes, and ", source_, " takes words of up to ",
                            kMostBytesOfAWord),
                     "Encode the text in parts.");
  }
  thread_local std::vector<Best> best;
  best.assign(word.size() + 1, Best{});
  const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
    Best& there = best[end];
    if (there.begin < 0 || score > there.score) {
      there = {score, id, static_cast<int32_t>(begin)};
    }
  };
  for (size_t at = 0; at < word.size();) {
    const size_t bytes = char_at(word, at).bytes;
    const double here = best[at].score;
    bool has_token = false;
    uint32_t node = Trie::kRoot;
    for (size_t end = at; end < word.size();) {
      node = trie_.step(node, word[end]);
      if (node == Trie::kNowhere) {
        break;
      }
      ++end;
      if (const int32_t id = trie_.value(node); id >= 0) {
        offer(at, end, scores_[static_cast<size_t>(id)] + here, id);
        has_token = has_token || end == at + bytes;
      }
    }
    if (!has_token) {
      if (unk_id_ < 0) {
        throw InputError("tokenizer",
                         concat(source_, " has no token for \"", printable(word.substr(at, bytes)), "\" in \"",
                                printable(word.substr(0, 60)), "\", and no unknown token"),
                         "Set \"unk_id\" of the model.");
      }
      offer(at, at + bytes, unk_score_ + here, unk_id_);
    }
    at += bytes;
  }
  const size_t start = out.size();
  size_t unknown_end = 0; // of a run of unknown characters
  for (size_t end = word.size(); end > 0;) {
    const Best& token = best[end];
    const auto begin = static_cast<size_t>(token.begin);
    if (token.id == unk_id_) {
      unknown_end = unknown_end == 0 ? end : unknown_end;
      if (begin == 0 || best[begin].id != unk_id_) {
        unknown(word.substr(begin, unknown_end - begin), out);
        unknown_end = 0;
      }
    } else {
      out.push_back(token.id);
    }
    end = begin;
  }
  std::reverse(out.begin() + static_cast<std::ptrdiff_t>(start), out.end());
  constexpr size_t kKept = 1 << 16;
  if (best.capacity() > kKept) { // a word of megabytes must not keep its memory
    best = {};
  }
}

std::unique_ptr<Model> read_unigram(ObjectReader& reader) {
  const JsonNode& vocab = reader.require("vocab");
  std::vector<Unigram::Piece> pieces;
  for (const JsonNode& piece : vocab.elements()) {
    if (piece.elements().size() != 2) {
      fail_at(piece.where(),
              concat("a token of a Unigram is [\"token\", score], found ", piece.elements().size(), " values"));
    }
    pieces.push_back({piece.elements()[0].as_string(), piece.elements()[1].as_real()});
  }
  if (pieces.empty() || pieces.size() > static_cast<size_t>(kMostTokens)) {
    fail_at(vocab.where(), concat("the vocabulary has ", pieces.size(), " tokens"));
  }
  const JsonNode* const unknown = reader.find("unk_id");
  int64_t unk_id = -1;
  if (unknown != nullptr && !unknown->is_null()) {
    unk_id = unknown->as_integer();
    if (unk_id < 0 || unk_id >= static_cast<int64_t>(pieces.size())) {
      fail_at(unknown->where(), concat("unk_id ", unk_id, " is not in 0 to ", pieces.size() - 1));
    }
  }
  const bool byte_fallback = reader.get("byte_fallback", false);
  reader.finish();
  const std::string& where = reader.node().where();
  return std::make_unique<Unigram>(pieces, static_cast<int32_t>(unk_id), byte_fallback, source_of(where));
}

} // namespace trireme::tokenizer
