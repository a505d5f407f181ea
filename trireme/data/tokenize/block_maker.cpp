#include <trireme/data/tokenize/block_maker.h>

#include <algorithm>
#include <utility>

namespace trireme::data {
namespace {

bool continues_char(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// A letter, a digit, or a part of a character outside of ASCII.
bool is_in_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || static_cast<signed char>(c) < 0;
}

// How likely words end before text[at]. A space between words belongs to the second one in most tokenizers.
int rank_of_cut(std::string_view text, size_t at) {
  if (continues_char(text[at])) {
    return -1;
  }
  const bool behind_word = is_in_word(text[at - 1]);
  if (behind_word && text[at] == ' ' && at + 1 < text.size() && is_in_word(text[at + 1])) {
    return 3;
  }
  if (behind_word && text[at] == '\n') {
    return 2;
  }
  const std::string_view before = text.substr(at - std::min<size_t>(at, 3), std::min<size_t>(at, 3));
  const bool behind_stop = before == "\xE3\x80\x82" || before == "\xEF\xBC\x8C"; // of Chinese and Japanese
  return behind_stop && static_cast<signed char>(text[at]) < 0 ? 1 : 0;
}

// The end of `text` that the next part begins with: from a word on, if one begins soon.
std::string_view overlap_of(std::string_view text) {
  constexpr size_t kSoon = 200;
  if (text.size() <= kOverlapBytes) {
    return text;
  }
  size_t begin = text.size() - kOverlapBytes;
  while (begin < text.size() && continues_char(text[begin])) {
    ++begin;
  }
  for (size_t at = begin; at < std::min(begin + kSoon, text.size()); ++at) {
    if (rank_of_cut(text, at) == 3) {
      return text.substr(at);
    }
  }
  return text.substr(begin);
}

} // namespace

size_t cut_between_words(std::string_view text, size_t from, size_t to) {
  size_t best = to;
  int rank = -2;
  for (size_t at = to; at >= from && rank < 3; --at) {
    if (const int found = rank_of_cut(text, at); found > rank) {
      best = at;
      rank = found;
    }
  }
  return best;
}

void BlockMaker::add(const DocumentPiece& piece) {
  const bool stays_whole = piece.text.size() <= kBlockBytes || piece.json_line > 0;
  if (piece.begins && piece.ends && stays_whole) {
    if (!documents_.ends.empty() && documents_.text.size() + piece.text.size() > kBlockBytes) {
      flush();
    }
    documents_.text += piece.text;
    documents_.ends.push_back(documents_.text.size());
    documents_.json_lines.push_back(piece.json_line);
    return;
  }
  for (size_t at = 0; at < piece.text.size(); at += kBlockBytes) {
    add_to_document(std::string_view(piece.text).substr(at, kBlockBytes));
  }
  if (!piece.ends) {
    return;
  }
  if (has_parts_ || rest_.size() > kBlockBytes) {
    give_part(rest_.size(), /*last=*/true);
  } else {
    add({std::exchange(rest_, {}), true, true});
  }
}

void BlockMaker::flush() {
  if (!documents_.ends.empty()) {
    give_(std::exchange(documents_, {}));
  }
}

// Cuts only where more text follows than an overlap: the last part is not tiny.
void BlockMaker::add_to_document(std::string_view text) {
  rest_ += text;
  while (rest_.size() > kBlockBytes + kOverlapBytes) {
    give_part(cut_between_words(rest_, kBlockBytes / 2, kBlockBytes), /*last=*/false);
  }
}

void BlockMaker::give_part(size_t bytes, bool last) {
  flush();
  Block part;
  part.is_part = true;
  part.begins = !has_parts_;
  part.ends_document = last;
  part.overlap = overlap_.size();
  part.text = std::exchange(overlap_, {});
  part.text.append(rest_, 0, bytes);
  rest_.erase(0, bytes);
  has_parts_ = !last;
  if (!last) {
    overlap_ = overlap_of(part.text);
  }
  give_(std::move(part));
}

} // namespace trireme::data
