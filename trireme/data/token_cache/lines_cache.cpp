#include <trireme/data/token_cache/lines_cache.h>

#include <trireme/base/error.h>
#include <trireme/chat/chat_template.h>
#include <trireme/data/tokenize/write_shards.h>
#include <trireme/tokenizer/tokenizer_files.h>

#include <utility>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

// Another tokenization of the same lines by a later version of this program must not be taken for this one.
constexpr const char* kLineRules = "lines 1";

// Those beside the tokenizer's own that end tokens and chat templates are read from.
std::vector<fs::path> deciding_beside(const LineFiles& lines) {
  std::vector<fs::path> found;
  const auto add = [&](const fs::path& path) {
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) {
      found.push_back(path);
    }
  };
  const std::vector<tokenizer::TokenizerFile> files = tokenizer::tokenizer_files(lines.tokenizer);
  for (const tokenizer::TokenizerFile& file : files) {
    if (!file.decides) {
      add(file.path);
    }
  }
  if (!files.empty()) {
    add(files.front().path.parent_path() / "config.json");
  }
  if (chat::is_template_file(lines.chat_template)) {
    add(lines.chat_template);
  } else if (!lines.chat_template.empty() && !files.empty()) {
    add(files.front().path.parent_path() / "additional_chat_templates" / (lines.chat_template + ".jinja"));
  }
  return found;
}

TokenCache::Key key_of(const LineFiles& lines) {
  std::vector<fs::path> files = lines.train;
  files.insert(files.end(), lines.validation.begin(), lines.validation.end());
  const std::vector<fs::path> beside = deciding_beside(lines);
  files.insert(files.end(), beside.begin(), beside.end());
  return {concat(kLineRules, ' ', lines.train.size(), ' ', lines.validation.size(), ' ',
                 lines.loss_on == LossOn::all ? "all" : "response", ' ', lines.chat_template),
          lines.tokenizer, std::move(files)};
}

CacheEntry::Split write_split(const LineFiles& lines, const std::vector<fs::path>& inputs,
                              const tokenizer::Tokenizer& tokenizer, int threads, const Stop& stop,
                              const fs::path& folder) {
  const TokenizeOptions options{
      .inputs = inputs,
      .tokenizer = lines.tokenizer,
      .threads = threads,
      .lines = {.loss_on = lines.loss_on, .chat_template = lines.chat_template, .place = lines.place},
      .stop = stop};
  const auto make_folder = [&] {
    make_cache_folder(folder);
    return folder;
  };
  return {{}, write_shards(options, tokenizer, make_folder).index.shards};
}

} // namespace

std::optional<CachedText> find_lines(const TokenCache& cache, const LineFiles& lines) {
  const auto found = cache.find(key_of(lines));
  return found ? std::optional(CachedText::of(*found)) : std::nullopt;
}

CachedText find_or_make_lines(const TokenCache& cache, const LineFiles& lines, const MakeTokenizer& tokenizer,
                              int threads) {
  return CachedText::of(cache.find_or_make(key_of(lines), [&](const fs::path& folder, CacheEntry& entry) {
    const auto opened = tokenizer();
    entry.splits[CachedText::kTrain] =
        write_split(lines, lines.train, *opened, threads, cache.stop(), folder / CachedText::kTrain);
    if (!lines.validation.empty()) {
      entry.splits[CachedText::kValidation] =
          write_split(lines, lines.validation, *opened, threads, cache.stop(), folder / CachedText::kValidation);
    }
  }));
}

} // namespace trireme::data
