#include <trireme/data/tokenize/part_joiner.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::data {
namespace {

constexpr size_t kMostJoinedBytes = size_t{32} << 20;
// Fewer ids of an overlap say too little.
constexpr size_t kFewestIds = 8;

constexpr const char* kDivide = "Divide the document: each line of a .jsonl file is one, and each text file.";

void encode_part(Block& block, const tokenizer::Tokenizer& tokenizer) {
  block.overlap_ids = tokenizer.encode(std::string_view(block.text).substr(0, block.overlap));
  block.ids = tokenizer.encode(block.text);
  const auto [here, there] = std::ranges::mismatch(block.overlap_ids, block.ids);
  block.fits = here == block.overlap_ids.end();
  if (block.fits) {
    block.ids.erase(block.ids.begin(), there);
  }
}

void add_document(Block& block, const EncodedLine& document) {
  if (!document.counted.empty()) {
    block.counted.resize(block.ids.size(), 1);
    block.counted.insert(block.counted.end(), document.counted.begin(), document.counted.end());
  }
  block.ids.insert(block.ids.end(), document.ids.begin(), document.ids.end());
  if (!block.counted.empty()) {
    block.counted.resize(block.ids.size(), 1);
  }
  block.id_ends.push_back(block.ids.size());
  block.have_end.push_back(document.has_end);
  block.text_bytes += document.text_bytes;
}

// Whether ids repeat a beginning of at most half their number (Knuth, Morris, Pratt 1977). In such text, "11111", ids
// do not show where words begin, which may matter to the text behind it.
bool is_periodic(std::span<const int32_t> ids) {
  std::vector<size_t> border(ids.size() + 1); // of the first n ids: the longest that is beginning and end
  size_t length = 0;
  for (size_t n = 1; n < ids.size(); ++n) {
    while (length > 0 && ids[n] != ids[length]) {
      length = border[length];
    }
    length += ids[n] == ids[length] ? 1 : 0;
    border[n + 1] = length;
  }
  return 2 * (ids.size() - border[ids.size()]) <= ids.size();
}

// In chunks, because a few ids behind a long run would hide it.
bool repeats_mostly(std::span<const int32_t> ids) {
  constexpr size_t kChunk = 32;
  size_t chunks = 0;
  size_t periodic = 0;
  for (; !ids.empty(); ids = ids.subspan(std::min(ids.size(), kChunk))) {
    ++chunks;
    periodic += is_periodic(ids.first(std::min(ids.size(), kChunk))) ? 1 : 0;
  }
  return 2 * periodic > chunks;
}

// Whether `before`, which ends with the overlap of `part`, has the same ids there.
bool fit(const Block& before, const Block& part) {
  const std::span<const int32_t> overlap = part.overlap_ids;
  if (!part.fits || overlap.size() < kFewestIds) {
    return false;
  }
  const auto end = overlap.last(overlap.size() - overlap.size() / 2);
  return before.ids.size() >= end.size() && std::ranges::equal(end, std::span(before.ids).last(end.size())) &&
         !repeats_mostly(end);
}

} // namespace

void encode_block(Block& block, const tokenizer::Tokenizer& tokenizer, const LineEncoder& lines,
                  const std::string& source) {
  try {
    if (block.is_part) {
      return encode_part(block, tokenizer);
    }
    size_t begin = 0;
    for (size_t i = 0; i < block.ends.size(); ++i) {
      const std::string_view text = std::string_view(block.text).substr(begin, block.ends[i] - begin);
      const int64_t line = block.json_lines[i];
      add_document(block, line > 0 ? lines.encode(text, concat(source, ':', line))
                                   : EncodedLine{tokenizer.encode(text), {}, std::ssize(text)});
      begin = block.ends[i];
    }
    block.text = {};
  } catch (...) {
    block.error = std::current_exception();
  }
}

void PartJoiner::encode_again(const std::string& source) {
  encode_part(*held_, tokenizer_);
  encoded_bytes_ = held_->text.size();
  if (!held_->fits) { // what is already out would have to change
    throw InputError("data", concat(source, ": the ids of ", tokenizer_.describe(), " depend on text far behind them"),
                     kDivide);
  }
}

void PartJoiner::join(const Block& part, const std::string& source) {
  held_->text.append(part.text, part.overlap);
  held_->ends_document = part.ends_document;
  ++num_joined_;
  if (held_->text.size() > kMostJoinedBytes) {
    throw InputError("data",
                     concat(source, " has ", format_bytes(held_->text.size()), " of text that ", tokenizer_.describe(),
                            " can only encode in one piece"),
                     kDivide);
  }
  if (held_->ends_document || held_->text.size() >= 2 * encoded_bytes_) {
    encode_again(source);
  }
}

bool PartJoiner::can_follow(const Block& part) const {
  return is_bytes_ || (tokenizer_.is_local() && fit(*held_, part));
}

void PartJoiner::add(Block part, const std::string& source) {
  if (!part.begins && (encoded_bytes_ < held_->text.size() || !can_follow(part))) {
    join(part, source);
  } else {
    if (!part.begins) {
      emit_(held_->ids);
    }
    held_ = std::move(part);
    encoded_bytes_ = held_->text.size();
  }
  if (held_->ends_document) {
    emit_(held_->ids);
    held_.reset();
  }
}

} // namespace trireme::data
