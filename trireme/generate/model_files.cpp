#include <trireme/generate/model_files.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <array>

namespace trireme::generate {
namespace {

namespace fs = std::filesystem;

constexpr std::array kConfig = {"config.json", "generation_config.json"};
constexpr std::array kTokenizer = {"tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "chat_template.jinja",
                                   "chat_template.json",
                                   "vocab.json",
                                   "merges.txt",
                                   "vocab.txt",
                                   "tokenizer.model",
                                   "encoder.json",
                                   "vocab.bpe"};

void put_copy(const fs::path& from, const fs::path& to) {
  std::error_code failed;
  fs::create_directories(to.parent_path(), failed);
  if (!failed) {
    fs::copy_file(from, to, fs::copy_options::overwrite_existing, failed);
  }
  if (failed) {
    throw Error("train", concat("cannot copy ", from.string(), " to ", to.string(), ": ", failed.message()));
  }
}

template <size_t kFiles>
void copy_files(const fs::path& from, const std::array<const char*, kFiles>& names, const fs::path& to) {
  std::error_code ignored;
  for (const char* name : names) {
    if (fs::is_regular_file(from / name, ignored) && !fs::equivalent(from / name, to / name, ignored)) {
      put_copy(from / name, to / name);
    }
  }
}

// A folder, whether the path is one or a file in one.
fs::path folder_of(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? path : path.parent_path();
}

fs::path kept_in(const fs::path& checkpoint) {
  return checkpoint.parent_path().parent_path() / kKept; // RUN/checkpoints/global_step10
}

} // namespace

void keep_model_files(const config::RunConfig& run, const fs::path& run_folder) {
  const fs::path to = run_folder / kKept;
  const fs::path& from = run.model.init_from();
  std::error_code ignored;
  if (run.model.reads_tokens() && fs::is_regular_file(folder_of(from) / "config.json", ignored)) {
    copy_files(folder_of(from), kConfig, to);
  }
  const fs::path tokenizer = run.data.tokenizer;
  if (fs::exists(tokenizer, ignored)) { // not "bytes", and not a pair of files
    copy_files(folder_of(tokenizer), kTokenizer, to);
  }
  const bool has_own_name = std::ranges::find(kTokenizer, tokenizer.filename()) == kTokenizer.end();
  if (has_own_name && fs::is_regular_file(tokenizer, ignored)) {
    put_copy(tokenizer, to / kTokenizer.front());
  }
}

void copy_kept_files(const fs::path& checkpoint, const fs::path& to) {
  copy_files(kept_in(checkpoint), kConfig, to);
  copy_files(kept_in(checkpoint), kTokenizer, to);
}

fs::path kept_tokenizer(const config::RunConfig& run, const fs::path& checkpoint) {
  const fs::path& tokenizer = run.data.tokenizer;
  std::error_code ignored;
  if (!tokenizer.has_parent_path() || fs::exists(tokenizer, ignored)) {
    return tokenizer;
  }
  const fs::path kept = kept_in(checkpoint);
  for (const fs::path& name :
       {tokenizer.filename(), fs::path("tokenizer.json"), fs::path("vocab.json"), fs::path("encoder.json")}) {
    if (fs::is_regular_file(kept / name, ignored)) {
      return kept / name;
    }
  }
  return tokenizer; // the error names it
}

} // namespace trireme::generate
