#include <trireme/data/token_cache/text_cache.h>

#include <trireme/base/error.h>
#include <trireme/data/token_cache/encode_text.h>
#include <trireme/data/token_cache/text_stream.h>
#include <trireme/data/tokenize/shard_writer.h>

#include <utility>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

// Another tokenization of the same files by a later version of this program must not be taken for this one.
constexpr const char* kTextRules = "texts 1";

uint64_t bytes_of(const std::vector<fs::path>& files, const Stop& stop) {
  TextStream stream(files);
  uint64_t bytes = 0;
  for (std::string piece; stream.next(TextStream::kToTheEnd, piece);) {
    check_stop(stop, "counting the bytes of the text");
    bytes += piece.size();
  }
  return bytes;
}

// Writes one split's shards into a folder.
class SplitWriter {
 public:
  SplitWriter(const fs::path& folder, const tokenizer::Tokenizer& tokenizer, uint64_t tokenizer_hash)
      : tokenizer_(tokenizer),
        writer_({.folder = folder,
                 .token_bytes = token_bytes_of(tokenizer.vocab_size()),
                 .vocab_size = tokenizer.vocab_size(),
                 .tokenizer_hash = tokenizer_hash,
                 .shard_tokens = kShardTokens}) {
    make_cache_folder(folder);
  }

  /// The text up to byte `end` of the stream; nullopt if there is none.
  std::optional<CacheEntry::Split> write(TextStream& text, uint64_t end, int threads, const Stop& stop) {
    CacheEntry::Split split;
    bool begins = true;
    split.bytes = encode_text([&](std::string& piece) { return text.next(end, piece); }, tokenizer_, threads,
                              [&](std::span<const int32_t> ids) {
                                check_stop(stop, "tokenizing");
                                writer_.append(ids, {}, begins && !ids.empty());
                                begins = begins && ids.empty();
                              });
    if (begins && split.bytes.total > 0) {
      throw InputError("data", "there is no token in the text");
    }
    if (begins) {
      return std::nullopt;
    }
    split.shards = writer_.finish();
    return split;
  }

 private:
  static constexpr int64_t kShardTokens = int64_t{1} << 30;

  const tokenizer::Tokenizer& tokenizer_;
  ShardWriter writer_;
};

TokenCache::Key key_of(const TextFiles& texts) {
  std::vector<fs::path> files = texts.train;
  files.insert(files.end(), texts.validation.begin(), texts.validation.end());
  const double fraction = texts.validation.empty() ? texts.validation_fraction : 0;
  return {concat(kTextRules, ' ', texts.train.size(), ' ', fraction), texts.tokenizer, std::move(files)};
}

void write_texts(const TextFiles& texts, const tokenizer::Tokenizer& tokenizer, uint64_t tokenizer_hash, int threads,
                 const Stop& stop, const fs::path& folder, CacheEntry& entry) {
  const double fraction = texts.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    throw InputError("data", concat("validation_fraction must be at least 0 and below 1, got ", fraction));
  }
  uint64_t end = TextStream::kToTheEnd;
  if (texts.validation.empty() && fraction > 0) {
    const uint64_t bytes = bytes_of(texts.train, stop);
    end = bytes - static_cast<uint64_t>(static_cast<double>(bytes) * fraction);
  }
  TextStream train(texts.train);
  auto written = SplitWriter(folder / CachedText::kTrain, tokenizer, tokenizer_hash).write(train, end, threads, stop);
  if (!written) {
    throw InputError("data", "there is no text");
  }
  entry.splits[CachedText::kTrain] = *std::move(written);
  TextStream separate(texts.validation);
  written = SplitWriter(folder / CachedText::kValidation, tokenizer, tokenizer_hash)
                .write(texts.validation.empty() ? train : separate, TextStream::kToTheEnd, threads, stop);
  if (written) {
    entry.splits[CachedText::kValidation] = *std::move(written);
  }
}

} // namespace

CachedText CachedText::of(const CachedTokens& found) {
  const auto split_of = [&](const char* name) {
    const CacheEntry::Split& split = found.entry.splits.at(name);
    return CachedText::Split{found.shards_of(name), split.tokens(), split.bytes};
  };
  CachedText text{split_of(kTrain), std::nullopt, found.in_use};
  if (found.entry.splits.contains(kValidation)) {
    text.validation = split_of(kValidation);
  }
  return text;
}

std::optional<CachedText> find_text(const TokenCache& cache, const TextFiles& texts) {
  const auto found = cache.find(key_of(texts));
  return found ? std::optional(CachedText::of(*found)) : std::nullopt;
}

CachedText find_or_make_text(const TokenCache& cache, const TextFiles& texts, const MakeTokenizer& tokenizer,
                             int threads) {
  const TokenCache::Key key = key_of(texts);
  return CachedText::of(cache.find_or_make(key, [&](const fs::path& folder, CacheEntry& entry) {
    write_texts(texts, *tokenizer(), key.tokenizer_hash, threads, cache.stop(), folder, entry);
  }));
}

} // namespace trireme::data
