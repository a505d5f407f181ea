#include <trireme/data/tokenize/tokenize.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/chat/chat_template.h>
#include <trireme/data/tokenize/output_folder.h>
#include <trireme/data/tokenize/write_shards.h>
#include <trireme/tokenizer/tokenizer_files.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kChatTemplate = "chat_template.jinja";

// Without links where the system can follow them: it cannot with "/dev/fd/63", a pipe, which is refused when it is
// read.
fs::path without_links(const fs::path& path) {
  std::error_code unknown;
  const fs::path absolute = fs::absolute(path, unknown);
  fs::path found = fs::weakly_canonical(absolute, unknown);
  return unknown ? absolute : found;
}

void check(const TokenizeOptions& options) {
  if (options.inputs.empty()) {
    throw InputError("data", "no files of text given");
  }
  if (options.out.empty() || options.threads < 1 || options.shard_tokens < 1) {
    throw InputError("data", concat("a folder, at least 1 thread and 1 token a shard are needed, got \"",
                                    options.out.string(), "\", ", options.threads, " and ", options.shard_tokens));
  }
  const fs::path folder = without_links(options.out) / "";
  const auto last = std::prev(folder.end()); // the empty name behind the slash
  for (const fs::path& input : options.inputs) {
    const fs::path file = without_links(input);
    if (std::mismatch(folder.begin(), last, file.begin(), file.end()).first == last) {
      throw InputError("data",
                       concat("the input ", input.string(), " is inside of the output folder ", options.out.string()),
                       "Name another folder with --out.");
    }
  }
}

// A chat template of its own takes the place of the tokenizer's. Returns the names.
std::vector<std::string> copy_tokenizer(std::vector<tokenizer::TokenizerFile> files, const std::string& chat_template,
                                        const fs::path& folder) {
  constexpr mode_t kMode = 0644;
  std::error_code ignored;
  if (!files.empty() && chat::is_template_file(chat_template) && fs::is_regular_file(chat_template, ignored)) {
    std::erase_if(files, [](const tokenizer::TokenizerFile& file) { return file.name == kChatTemplate; });
    files.push_back({chat_template, kChatTemplate, /*decides=*/false});
  }
  std::vector<std::string> names;
  for (const tokenizer::TokenizerFile& file : files) {
    write_file_atomically(folder / file.name, read_file(file.path), kMode);
    names.push_back(file.name);
  }
  return names;
}

} // namespace

TokenizeResult tokenize_files(const TokenizeOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check(options);
  const auto tokenizer = tokenizer::make_tokenizer(options.tokenizer);
  const std::vector<tokenizer::TokenizerFile> files = tokenizer::tokenizer_files(options.tokenizer);
  std::unique_ptr<NewFolder> folder;
  TokenizeResult result = write_shards(options, *tokenizer, [&] {
    folder.reset(new NewFolder(make_output_folder(options.out, options.force)));
    return folder->path();
  });
  result.index.tokenizer_files = copy_tokenizer(files, options.lines.chat_template, folder->path());
  write_file_atomically(folder->path() / kShardIndexName, result.index.to_text(), 0644);
  put_in_place(*folder, options.force);
  result.folder = folder->place();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

} // namespace trireme::data
