#include <trireme/tokenizer/text_tokenizer.h>

#include <trireme/tokenizer/cache_lease.h>
#include <trireme/tokenizer/unicode.h>

#include <algorithm>
#include <exception>
#include <thread>

namespace trireme::tokenizer {
namespace {

// A thread for less text costs more than it saves.
constexpr size_t kLeastBytesOfAChunk = size_t{64} << 10;
// The true cuts are nearly always found within a few words.
constexpr size_t kMostCuts = 1000;

} // namespace

// A part of a text that a thread encodes. It begins at a guess; where words end depends only on where they begin, so
// from the first cut that the text before it has too, its ids are those of the whole text.
struct TextTokenizer::Chunk {
  size_t begin = 0;
  size_t limit = 0; // where the next one begins
  size_t end = 0;   // the first cut at `limit` or behind it
  struct CutHere {
    size_t at;
    size_t num_ids;
  };
  std::vector<CutHere> cuts;
  std::vector<int32_t> ids;
  bool failed = false;
  std::exception_ptr error;
};

PreTokenizer::Cut TextTokenizer::next_cut(std::string_view text, size_t begin) const {
  const auto& steps = parts_.pre_tokenizers.steps;
  if (!steps.empty()) {
    return steps[0]->next_cut(text, begin);
  }
  return parts_.pre_tokenizers.byte_chars ? PreTokenizer::Cut{}
                                          : PreTokenizer::Cut{parts_.model->part_end(text, begin)};
}

// Encodes from a cut to the next one and returns it; 0 if this text cannot be cut.
size_t TextTokenizer::encode_to_next_cut(Word piece, size_t begin, WordCache& cache, std::vector<int32_t>& out) const {
  const PreTokenizer::Cut cut = next_cut(piece.text, begin);
  if (cut.end != 0) {
    const Word word{piece.text.substr(begin, cut.end - begin), piece.is_first && begin == 0};
    split_from(cut.is_word ? 1 : 0, word, cache, out);
  }
  return cut.end;
}

void TextTokenizer::encode_chunk(Word piece, Chunk& chunk) const {
  try {
    const Lease cache(*this);
    for (size_t at = chunk.begin; at < chunk.limit;) {
      if (chunk.cuts.size() < kMostCuts) {
        chunk.cuts.push_back({at, chunk.ids.size()});
      }
      at = encode_to_next_cut(piece, at, *cache, chunk.ids);
      chunk.end = at;
      if (at == 0) {
        chunk.failed = true;
        return;
      }
    }
  } catch (...) {
    chunk.error = std::current_exception();
  }
}

bool TextTokenizer::encode_in_chunks(Word piece, int threads, WordCache& cache, std::vector<int32_t>& out) const {
  const size_t bytes = piece.text.size();
  const size_t count = std::min<size_t>(static_cast<size_t>(threads), bytes / kLeastBytesOfAChunk);
  if (count < 2) {
    return false;
  }
  if (const size_t first = next_cut(piece.text, 0).end; first == 0 || first == bytes) {
    return false;
  }
  std::vector<Chunk> chunks(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t guess = bytes / count * i;
    chunks[i].begin = i == 0 ? 0 : char_before(piece.text, guess + 1);
    chunks[i].limit = bytes;
    if (i > 0) {
      chunks[i - 1].limit = chunks[i].begin;
    }
  }
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < count; ++i) {
      others.emplace_back([this, piece, &chunk = chunks[i]] { encode_chunk(piece, chunk); });
    }
    encode_chunk(piece, chunks[0]);
  }
  const size_t start = out.size();
  size_t at = 0;
  for (const Chunk& chunk : chunks) {
    if (chunk.failed) {
      out.resize(start);
      return false;
    }
    const auto cut_at = [&](size_t place) {
      const auto found = std::ranges::lower_bound(chunk.cuts, place, {}, &Chunk::CutHere::at);
      return found != chunk.cuts.end() && found->at == place ? found : chunk.cuts.end();
    };
    while (at < chunk.limit && cut_at(at) == chunk.cuts.end()) {
      at = encode_to_next_cut(piece, at, cache, out);
      if (at == 0) {
        out.resize(start);
        return false;
      }
    }
    if (at < chunk.limit) {
      if (chunk.error) {
        std::rethrow_exception(chunk.error);
      }
      out.insert(out.end(), chunk.ids.begin() + static_cast<std::ptrdiff_t>(cut_at(at)->num_ids), chunk.ids.end());
      at = chunk.end;
    }
  }
  return true;
}

std::vector<int32_t> TextTokenizer::encode_with_threads(std::string_view text, int threads) const {
  std::string repaired;
  if (valid_utf8_prefix(text) != text.size()) {
    text = repaired = replace_invalid_utf8(text);
  }
  std::vector<int32_t> out;
  const Lease cache(*this);
  for_each_piece(
      text, threads, [&](int32_t id) { out.push_back(id); },
      [&](Word piece) {
        if (!encode_in_chunks(piece, threads, *cache, out)) {
          split_from(0, piece, *cache, out);
        }
      });
  return out;
}

} // namespace trireme::tokenizer
