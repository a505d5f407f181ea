#include <trireme/tokenizer/tokenizer.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/read_tokenizer.h>
#include <trireme/tokenizer/tokenizer_files.h>

#include <filesystem>
#include <utility>

namespace trireme::tokenizer {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
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
  const std::vector<TokenizerFile> files = deciding_files(spec);
  return files.size() == 1 ? read_tokenizer_json(files[0].path)
                           : read_vocab_and_merges(files.at(0).path, files.at(1).path);
}

} // namespace trireme::tokenizer
