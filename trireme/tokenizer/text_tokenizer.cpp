#include <trireme/tokenizer/text_tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/byte_alphabet.h>
#include <trireme/tokenizer/cache_lease.h>
#include <trireme/tokenizer/part_json.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

namespace trireme::tokenizer {
namespace {

// A text of a gigabyte must not reserve as many ids before one is known.
constexpr size_t kMostReserved = size_t{1} << 24;

// Positions in a word are 32-bit numbers.
constexpr size_t kMostBytesOfAWord = std::numeric_limits<int32_t>::max();

void check_growth(size_t before, size_t after, const std::string& source) {
  if (after > most_bytes_for(before)) {
    throw InputError("tokenizer", concat(source, " makes ", after, " bytes of ", before));
  }
}

} // namespace

TextTokenizer::TextTokenizer(TokenizerParts parts, std::string source)
    : parts_(std::move(parts)), source_(std::move(source)) {
  const std::vector<std::string>& tokens = parts_.model->tokens();
  std::set<std::string_view> special; // by content: a vocabulary may have it under several ids
  for (const AddedToken& token : parts_.added) {
    if (token.special) {
      special.insert(token.content);
    }
  }
  tokens_.resize(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (parts_.model->has_id(static_cast<int32_t>(id))) {
      set_token(static_cast<int32_t>(id), tokens[id], special.contains(tokens[id]));
    }
  }
  add_tokens();
}

void TextTokenizer::set_token(int32_t id, std::string text, bool special) {
  const auto index = static_cast<size_t>(id);
  if (index >= tokens_.size()) {
    tokens_.resize(index + 1);
  }
  if (parts_.decoders.only_bytes) {
    text = bytes_of_chars(text).value_or(text);
  }
  tokens_[index] = {std::move(text), true, special};
}

void TextTokenizer::add_tokens() {
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  for (AddedToken token : parts_.added) {
    if (token.normalized) {
      const size_t bytes = token.content.size();
      for (const auto& step : parts_.normalizers) {
        step->apply(token.content);
        check_growth(bytes, token.content.size(), source_);
      }
    }
    set_token(token.id, token.content, token.special);
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  raw_added_ = AddedTokens(std::move(raw));
  normalized_added_ = AddedTokens(std::move(normalized));
}

std::vector<int32_t> TextTokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::string repaired;
  if (valid_utf8_prefix(text) != text.size()) {
    text = repaired = replace_invalid_utf8(text);
  }
  std::vector<int32_t> out;
  out.reserve(std::min(text.size() / 3 + 8, kMostReserved));
  if (add_special_tokens) {
    out = parts_.post_processor.before;
  }
  const Lease cache(*this);
  encode_valid(text, *cache, out);
  if (add_special_tokens) {
    out.insert(out.end(), parts_.post_processor.after.begin(), parts_.post_processor.after.end());
  }
  return out;
}

// Calls `added` with added tokens and `piece` with the normalized text between them.
void TextTokenizer::for_each_piece(std::string_view text, int threads, FunctionRef<void(int32_t)> added,
                                   FunctionRef<void(Word)> piece) const {
  const auto inner = [&](std::string_view normalized, bool is_first) {
    normalized_added_.split(normalized, [&](TextPart part) {
      if (part.id) {
        added(*part.id);
      } else {
        piece({part.text, is_first && part.text.data() == normalized.data()});
      }
    });
  };
  std::string changed;
  raw_added_.split(text, [&](TextPart part) {
    if (part.id) {
      return added(*part.id);
    }
    bool is_first = part.text.data() == text.data();
    if (parts_.normalizers.empty()) {
      return inner(part.text, is_first);
    }
    changed = part.text;
    for (const auto& step : parts_.normalizers) {
      is_first &= apply_with_threads(*step, changed, threads);
      check_growth(part.text.size(), changed.size(), source_);
    }
    inner(changed, is_first);
  });
}

void TextTokenizer::encode_valid(std::string_view text, WordCache& cache, std::vector<int32_t>& out) const {
  for_each_piece(
      text, 1, [&](int32_t id) { out.push_back(id); }, [&](Word piece) { split_from(0, piece, cache, out); });
}

void TextTokenizer::split_from(size_t step, Word word, WordCache& cache, std::vector<int32_t>& out) const {
  const auto& steps = parts_.pre_tokenizers.steps;
  if (step == steps.size()) {
    return encode_word(word.text, cache, out);
  }
  steps[step]->split(word, [&, step](Word part) { split_from(step + 1, part, cache, out); });
}

void TextTokenizer::encode_word(std::string_view word, WordCache& cache, std::vector<int32_t>& out) const {
  const bool byte_chars = parts_.pre_tokenizers.byte_chars;
  for (size_t at = 0; at < word.size();) {
    // Characters of bytes differ from those that parts are cut at.
    const size_t end = byte_chars ? word.size() : parts_.model->part_end(word, at);
    const std::string_view part = word.substr(at, end - at);
    at = end;
    if (part.size() > kMostBytesOfAWord) {
      throw InputError("tokenizer",
                       concat("the text has a word of ", part.size(), " bytes, and ", source_, " takes words of up to ",
                              kMostBytesOfAWord),
                       "This tokenizer has no shorter words in it: encode it in parts.");
    }
    const bool remembered = part.size() <= WordCache::kMostBytes;
    if (remembered) {
      if (const WordCache::Found known = cache.find(part); known.found) {
        out.insert(out.end(), known.ids.begin(), known.ids.end());
        continue;
      }
    }
    const size_t begin = out.size();
    if (byte_chars) {
      std::string chars;
      append_byte_chars(chars, part);
      parts_.model->encode(chars, out);
    } else {
      parts_.model->encode(part, out);
    }
    if (remembered) {
      cache.insert(part, std::span(out).subspan(begin));
    }
  }
}

bool TextTokenizer::is_local() const {
  return std::ranges::none_of(parts_.pre_tokenizers.steps, [](const auto& step) { return step->counts_characters(); });
}

std::string TextTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> chain;
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<size_t>(ids[i]) >= tokens_.size() || !tokens_[static_cast<size_t>(ids[i])].known) {
      throw InputError("tokenizer", concat("token ", i, " is ", ids[i], ", ", source_, " has no such id (ids are 0 to ",
                                           tokens_.size() - 1, ')'));
    }
    const Token& token = tokens_[static_cast<size_t>(ids[i])];
    if (skip_special_tokens && token.special) {
      continue;
    }
    if (parts_.decoders.only_bytes) {
      text += token.text;
    } else {
      chain.push_back(token.text);
    }
  }
  if (parts_.decoders.only_bytes) {
    return text;
  }
  const auto bytes = [&] {
    return std::accumulate(chain.begin(), chain.end(), size_t{0},
                           [](size_t sum, const std::string& token) { return sum + token.size(); });
  };
  const size_t before = bytes();
  for (const auto& step : parts_.decoders.steps) {
    step->apply(chain);
    check_growth(before + chain.size(), bytes(), source_);
  }
  return join(chain, parts_.has_decoder ? "" : " ");
}

std::string TextTokenizer::describe() const {
  return concat(parts_.model->name(), " (", tokens_.size(), " tokens, ", source_, ')');
}

} // namespace trireme::tokenizer
