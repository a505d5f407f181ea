#include <trireme/data/token_files/shard_index.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/json.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kIndexFormat = "trireme-token-shards";
constexpr int64_t kIndexVersion = 2; // with "counted_tokens"; without it, 1

int64_t read_count(ObjectReader& reader, const std::string& key) {
  const JsonNode& node = reader.require(key);
  const int64_t count = node.as_integer();
  if (count < 0) {
    node.fail(concat("must be at least 0, got ", count));
  }
  return count;
}

uint64_t read_hex(ObjectReader& reader, const std::string& key) {
  const JsonNode& node = reader.require(key);
  const std::string& text = node.as_string();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16) {
    node.fail("must be 16 hexadecimal digits");
  }
  return number;
}

// Of a file in the folder itself.
std::string read_name(const JsonNode& node) {
  const std::string& name = node.as_string();
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    node.fail("must be the name of a file in this folder");
  }
  return name;
}

} // namespace

std::string percent_of(int64_t part, int64_t whole) {
  return concat(std::lround(100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1))),
                " %");
}

std::string hex_of(uint64_t number) {
  std::string digits(16, '0');
  for (size_t i = 16; i-- > 0; number >>= 4) {
    digits[i] = "0123456789abcdef"[number & 15];
  }
  return digits;
}

std::string ShardIndex::to_text() const {
  ordered_json made = {{"format", kIndexFormat},
                       {"version", counted_tokens ? kIndexVersion : 1},
                       {"tokenizer", tokenizer},
                       {"tokenizer_files", tokenizer_files},
                       {"tokenizer_hash", hex_of(tokenizer_hash)},
                       {"vocab_size", vocab_size},
                       {"token_bytes", token_bytes},
                       {"end_token", nullptr},
                       {"tokens", tokens},
                       {"documents", documents},
                       {"text_bytes", text_bytes},
                       {"shards", ordered_json::array()},
                       {"inputs", ordered_json::array()}};
  if (counted_tokens) {
    made["counted_tokens"] = *counted_tokens;
  }
  if (end_token) {
    made["end_token"] = {{"text", end_token->text}, {"id", end_token->id}};
  }
  for (const Shard& shard : shards) {
    made["shards"].push_back({{"file", shard.file},
                              {"tokens", shard.tokens},
                              {"documents", shard.documents},
                              {"checksum", hex_of(shard.checksum)}});
  }
  for (const Input& input : inputs) {
    made["inputs"].push_back({{"file", input.file}, {"bytes", input.bytes}, {"documents", input.documents}});
  }
  return made.dump(1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
}

ShardIndex ShardIndex::parse(std::string_view text, const std::string& source) {
  const JsonNode root = JsonNode::parse(text, source);
  if (!root.is_object() || root.find("format") == nullptr) {
    root.fail("this is no index of token shards", "Name a folder that \"trireme data tokenize\" has written.");
  }
  ObjectReader reader(root);
  if (reader.require_as<std::string>("format") != kIndexFormat) {
    reader.require("format").fail("this is no index of token shards",
                                  "Name a folder that \"trireme data tokenize\" has written.");
  }
  if (const auto version = reader.require_as<int64_t>("version"); version < 1 || version > kIndexVersion) {
    reader.require("version").fail(concat("this program reads versions 1 and ", kIndexVersion, ", not ", version),
                                   "Make the shards again with \"trireme data tokenize\", or use a newer trireme.");
  }
  ShardIndex index;
  index.tokenizer = reader.require_as<std::string>("tokenizer");
  for (const JsonNode& name : reader.require("tokenizer_files").elements()) {
    index.tokenizer_files.push_back(read_name(name));
  }
  index.tokenizer_hash = read_hex(reader, "tokenizer_hash");
  index.vocab_size = read_count(reader, "vocab_size");
  index.token_bytes = read_count(reader, "token_bytes");
  if (const JsonNode& end = reader.require("end_token"); !end.is_null()) {
    ObjectReader token(end);
    const auto id = read_count(token, "id");
    if (id >= index.vocab_size || id > INT32_MAX) {
      end.fail(concat("id ", id, " is outside of a vocabulary of ", index.vocab_size));
    }
    index.end_token = EndToken{token.require_as<std::string>("text"), static_cast<int32_t>(id)};
    token.finish();
  }
  index.tokens = read_count(reader, "tokens");
  if (reader.find("counted_tokens") != nullptr) {
    index.counted_tokens = read_count(reader, "counted_tokens");
  }
  index.documents = read_count(reader, "documents");
  index.text_bytes = read_count(reader, "text_bytes");
  for (const JsonNode& node : reader.require("shards").elements()) {
    ObjectReader shard(node);
    index.shards.push_back({read_name(shard.require("file")), read_count(shard, "tokens"),
                            read_count(shard, "documents"), read_hex(shard, "checksum")});
    shard.finish();
  }
  if (index.shards.empty()) {
    root.fail("\"shards\" is empty");
  }
  for (const JsonNode& node : reader.require("inputs").elements()) {
    ObjectReader input(node);
    index.inputs.push_back(
        {input.require_as<std::string>("file"), read_count(input, "bytes"), read_count(input, "documents")});
    input.finish();
  }
  reader.finish();
  return index;
}

ShardIndex ShardIndex::read(const fs::path& folder) {
  const fs::path file = folder / kShardIndexName;
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) {
    throw InputError("data", concat(folder.string(), " is not a file, and as a folder it has no ", kShardIndexName),
                     "Name files, or a folder that \"trireme data tokenize\" has finished.");
  }
  return parse(read_file(file), file.string());
}

bool is_shard_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path / kShardIndexName, ignored) &&
         read_file(path / kShardIndexName).find(concat('"', kIndexFormat, '"')) != std::string::npos;
}

} // namespace trireme::data
