#include <trireme/tokenizer/tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/read_tokenizer.h>

#include <filesystem>
#include <utility>

namespace trireme::tokenizer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kChoices =
    "Give \"bytes\", a Hugging Face tokenizer.json, or a folder with vocab.json and merges.txt (or encoder.json and "
    "vocab.bpe).";

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::unique_ptr<Tokenizer> from_folder(const fs::path& folder) {
  if (is_file(folder / "tokenizer.json")) {
    return read_tokenizer_json(folder / "tokenizer.json");
  }
  const std::pair<const char*, const char*> pairs[] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
  for (const auto& [vocab, merges] : pairs) {
    if (is_file(folder / vocab) && is_file(folder / merges)) {
      return read_vocab_and_merges(folder / vocab, folder / merges);
    }
    if (is_file(folder / vocab) || is_file(folder / merges)) {
      const auto [there, missing] = is_file(folder / vocab) ? std::pair(vocab, merges) : std::pair(merges, vocab);
      throw InputError("tokenizer", concat(folder.string(), " has ", there, " but no ", missing), "Both are needed.");
    }
  }
  throw InputError("tokenizer", concat("the folder ", folder.string(), " has no tokenizer"), kChoices);
}

std::unique_ptr<Tokenizer> from_file(const fs::path& file) {
  if (file.filename() == "vocab.json" || file.filename() == "encoder.json") {
    for (const char* merges : {"merges.txt", "vocab.bpe"}) {
      if (is_file(file.parent_path() / merges)) {
        return read_vocab_and_merges(file, file.parent_path() / merges);
      }
    }
    throw InputError("tokenizer",
                     concat(file.string(), " needs its merges, there is no merges.txt or vocab.bpe beside it"),
                     kChoices);
  }
  return read_tokenizer_json(file);
}

} // namespace

std::vector<int32_t> Tokenizer::encode_with_threads(std::string_view text, int) const {
  return encode(text);
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text, bool) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  return ids;
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids, bool) const {
  std::string text;
  text.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] > 255) {
      throw InputError("tokenizer", concat("token ", i, " is ", ids[i], ", bytes are 0 to 255"));
    }
    text += static_cast<char>(ids[i]);
  }
  return text;
}

std::optional<std::pair<fs::path, fs::path>> vocab_and_merges_in(const std::string& spec) {
  const size_t comma = spec.find(',');
  if (comma == std::string::npos || !is_file(spec.substr(0, comma)) || !is_file(spec.substr(comma + 1))) {
    return std::nullopt;
  }
  return std::pair<fs::path, fs::path>(spec.substr(0, comma), spec.substr(comma + 1));
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec) {
  if (spec == "bytes") {
    return std::make_unique<ByteTokenizer>();
  }
  std::error_code error;
  if (fs::is_directory(spec, error)) {
    return from_folder(spec);
  }
  if (is_file(spec)) {
    return from_file(spec);
  }
  if (const auto pair = vocab_and_merges_in(spec)) {
    return read_vocab_and_merges(pair->first, pair->second);
  }
  throw InputError(
      "tokenizer",
      concat('"', spec, "\" is neither a known tokenizer nor a file or folder. ", did_you_mean(spec, {"bytes"})),
      kChoices);
}

} // namespace trireme::tokenizer
