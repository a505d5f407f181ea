#include <trireme/data/token_cache/labelled_cache.h>

#include <trireme/base/error.h>
#include <trireme/data/mapped_tokens.h>
#include <trireme/data/token_files/token_files.h>
#include <trireme/data/tokenize/shard_writer.h>

#include <algorithm>
#include <iterator>
#include <span>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLabelledRules = "labelled texts 1";
constexpr const char* kLabels = "_labels"; // behind the name of a split

TokenCache::Key key_of(const LabelledFiles& files) {
  std::vector<fs::path> all = files.train;
  all.insert(all.end(), files.validation.begin(), files.validation.end());
  return {concat(kLabelledRules, ' ', files.train.size(), ' ', files.sequence_length, ' ', files.classes),
          files.tokenizer, std::move(all)};
}

// The numbers of shards, and where their documents end.
void read_shards(const std::vector<fs::path>& shards, std::vector<int32_t>& numbers, std::vector<int64_t>* ends) {
  std::vector<int64_t> piece(1 << 12);
  for (const TokenFile& file : open_token_files(shards, 0)) {
    const MappedTokens tokens(file, 0, 0, 0);
    const auto before = std::ssize(numbers);
    for (int64_t at = 0; at < tokens.num_tokens(); at += std::ssize(piece)) {
      const auto count = static_cast<size_t>(std::min(std::ssize(piece), tokens.num_tokens() - at));
      tokens.read(at, std::span(piece).first(count));
      std::transform(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(count), std::back_inserter(numbers),
                     [](int64_t number) { return static_cast<int32_t>(number); });
    }
    for (int64_t i = 0; ends != nullptr && i < file.num_documents; ++i) {
      if (const int64_t start = before + file.document_start(i); start > 0) {
        ends->push_back(start);
      }
    }
  }
  if (ends != nullptr) {
    ends->push_back(std::ssize(numbers));
  }
}

LabelledTokens labelled_in(const CachedTokens& cached, const std::string& split) {
  LabelledTokens out;
  read_shards(cached.shards_of(split), out.tokens, &out.ends);
  std::vector<int32_t> labels;
  read_shards(cached.shards_of(split + kLabels), labels, nullptr);
  out.labels.assign(labels.begin(), labels.end());
  if (out.labels.size() != out.ends.size()) {
    throw InputError(
        "data", concat(cached.folder.string(), " has ", out.ends.size(), " texts and ", out.labels.size(), " labels"));
  }
  return out;
}

class Shards {
 public:
  Shards(const fs::path& folder, int64_t vocab_size, uint64_t tokenizer_hash)
      : writer_({.folder = folder,
                 .token_bytes = 4,
                 .vocab_size = vocab_size,
                 .tokenizer_hash = tokenizer_hash,
                 .shard_tokens = int64_t{1} << 30}) {
    make_cache_folder(folder);
  }
  void add(std::span<const int32_t> numbers) { writer_.append(numbers, {}, /*begins=*/true); }
  CacheEntry::Split finish() { return {{}, writer_.finish()}; }

 private:
  ShardWriter writer_;
};

void write_labelled(const LabelledTokens& texts, const std::string& split, int64_t vocab_size, uint64_t tokenizer_hash,
                    const fs::path& folder, CacheEntry& entry) {
  Shards tokens(folder / split, vocab_size, tokenizer_hash);
  Shards labels(folder / (split + kLabels), INT32_MAX, tokenizer_hash);
  int64_t begin = 0;
  for (size_t i = 0; i < texts.ends.size(); ++i) {
    tokens.add(std::span(texts.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(texts.ends[i] - begin)));
    begin = texts.ends[i];
    const auto label = static_cast<int32_t>(texts.labels[i]);
    labels.add({&label, 1});
  }
  entry.splits[split] = tokens.finish();
  entry.splits[split + kLabels] = labels.finish();
}

constexpr const char* kTrainTexts = "train";
constexpr const char* kValidationTexts = "validation";

} // namespace

std::optional<LabelledSplits> find_labelled(const TokenCache& cache, const LabelledFiles& files) {
  const auto found = cache.find(key_of(files));
  if (!found) {
    return std::nullopt;
  }
  LabelledSplits out{labelled_in(*found, kTrainTexts), std::nullopt, found->entry.labels};
  if (!files.validation.empty()) {
    out.validation = labelled_in(*found, kValidationTexts);
  }
  return out;
}

void find_or_make_labelled(const TokenCache& cache, const LabelledFiles& files, int64_t vocab_size,
                           const std::function<LabelledSplits()>& encode) {
  const TokenCache::Key key = key_of(files);
  cache.find_or_make(key, [&](const fs::path& folder, CacheEntry& entry) {
    const LabelledSplits texts = encode();
    write_labelled(texts.train, kTrainTexts, vocab_size, key.tokenizer_hash, folder, entry);
    if (texts.validation) {
      write_labelled(*texts.validation, kValidationTexts, vocab_size, key.tokenizer_hash, folder, entry);
    }
    entry.labels = texts.names;
  });
}

} // namespace trireme::data
