#include <trireme/data/byte_level_bpe.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/json.h>
#include <trireme/base/plain_text.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSupported =
    "Supported: model BPE, pre-tokenizer ByteLevel, no normalizer, decoder ByteLevel (what GPT-2 and its relatives "
    "have).";

[[noreturn]] void fail(const std::string& where, const std::string& happened, const std::string& next = "") {
  throw InputError("tokenizer", concat(where, ": ", happened), next);
}

// The alphabet of GPT-2's files: printable Latin-1 characters stand for their own byte, the other 68
// bytes for U+0100, U+0101 and so on, in order.
std::array<int, 0x200> make_byte_of_char() {
  std::array<int, 0x200> bytes;
  bytes.fill(-1);
  size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    bytes[printable ? static_cast<size_t>(byte) : next++] = byte;
  }
  return bytes;
}

// The bytes of a token in the files; nullopt for a character outside the alphabet. The alphabet's characters have one
// or two bytes of UTF-8, which JsonNode has checked.
std::optional<std::string> bytes_of(std::string_view token) {
  static const std::array<int, 0x200> byte_of_char = make_byte_of_char();
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    auto code = static_cast<size_t>(static_cast<unsigned char>(token[i]));
    if (code >= 0x80) {
      if (code >= 0xe0 || i + 1 == token.size()) {
        return std::nullopt;
      }
      code = (code & 0x1f) << 6 | (static_cast<unsigned char>(token[++i]) & 0x3f);
    }
    if (code >= byte_of_char.size() || byte_of_char[code] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(byte_of_char[code]);
  }
  return bytes;
}

// Builds a model from the strings in the files.
class ModelBuilder {
 public:
  ByteLevelBpeModel model;

  void add_vocab(const JsonNode& vocab) {
    for (const auto& [token, node] : vocab.members()) {
      const int64_t id = node.as_integer();
      if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
        fail(node.where(), concat("the id ", id, " of \"", token, "\" is out of range"));
      }
      const auto bytes = bytes_of(token);
      model.vocab.push_back({bytes.value_or(token), static_cast<int32_t>(id), bytes.has_value()});
      ids_.emplace(token, static_cast<int32_t>(id));
    }
    if (ids_.empty()) {
      fail(vocab.where(), "the vocabulary is empty");
    }
  }

  void add_merge(std::string_view left, std::string_view right, const std::string& where) {
    model.merges.push_back({need(left, where), need(right, where), need(concat(left, right), where)});
  }

  // "a b"; a token has no space, because the alphabet has none.
  void add_merge(const std::string& line, const std::string& where) {
    const std::vector<std::string> parts = split(line, ' ');
    if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
      fail(where, concat("a merge is two tokens with one space between, found \"", line.substr(0, 80), '"'));
    }
    add_merge(parts[0], parts[1], where);
  }

  std::optional<int32_t> id_of(std::string_view token) const {
    const auto found = ids_.find(std::string(token));
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  size_t vocab_tokens() const {
    return ids_.size();
  }

 private:
  int32_t need(std::string_view token, const std::string& where) const {
    const auto id = id_of(token);
    if (!id) {
      fail(where, concat("the merge needs the token \"", token.substr(0, 80), "\", which the vocabulary does not have"),
           "Vocabulary and merges must be of the same tokenizer.");
    }
    return *id;
  }

  std::unordered_map<std::string, int32_t> ids_;
};

// "#version: 0.2": first line of the lists that Hugging Face and OpenAI write.
bool is_version_line(const std::string& line) {
  return line.rfind("#version", 0) == 0;
}

std::string type_of(const JsonNode& node) {
  const JsonNode* type = node.is_object() ? node.find("type") : nullptr;
  return type == nullptr ? "?" : type->as_string();
}

void refuse_unless_empty(ObjectReader& model, const char* key, const char* why) {
  const JsonNode* node = model.find(key);
  if (node == nullptr || node->is_null()) {
    return;
  }
  const bool empty = node->kind() == JsonNode::Kind::string    ? node->as_string().empty()
                     : node->kind() == JsonNode::Kind::boolean ? !node->as_bool()
                                                               : node->as_real() == 0;
  if (!empty) {
    fail(node->where(), concat(key, ' ', node->plain().dump(), " is not supported: ", why), kSupported);
  }
}

void read_model(const JsonNode& node, ModelBuilder& builder) {
  ObjectReader reader(node);
  const std::string type = reader.get<std::string>("type", "BPE");
  if (type != "BPE") {
    fail(node.where(), concat("the model type \"", type, "\" is not supported"), kSupported);
  }
  refuse_unless_empty(reader, "dropout", "the ids would be random");
  refuse_unless_empty(reader, "continuing_subword_prefix", "byte-level tokens have no prefix");
  refuse_unless_empty(reader, "end_of_word_suffix", "byte-level tokens have no suffix");
  refuse_unless_empty(reader, "byte_fallback", "it belongs to sentencepiece models");
  builder.model.fuse_unk = reader.get("fuse_unk", false);
  builder.model.ignore_merges = reader.get("ignore_merges", false);
  builder.add_vocab(reader.require("vocab"));
  for (const JsonNode& merge : reader.require("merges").elements()) {
    if (merge.kind() == JsonNode::Kind::string) {
      if (!is_version_line(merge.as_string())) {
        builder.add_merge(merge.as_string(), merge.where());
      }
      continue;
    }
    if (merge.elements().size() != 2) {
      fail(merge.where(), concat("a merge is two tokens, found ", merge.elements().size()));
    }
    builder.add_merge(merge.elements()[0].as_string(), merge.elements()[1].as_string(), merge.where());
  }
  if (const auto unknown = reader.maybe<std::string>("unk_token")) {
    builder.model.unk_id = builder.id_of(*unknown).value_or(-1);
  }
}

void read_pre_tokenizer(const JsonNode* node, const std::string& file, ByteLevelBpeModel& model) {
  if (node == nullptr || node->is_null()) {
    fail(file, "there is no pre-tokenizer, so this is not a byte-level BPE", kSupported);
  }
  if (type_of(*node) != "ByteLevel") {
    fail(node->where(), concat("the pre-tokenizer \"", type_of(*node), "\" is not supported"), kSupported);
  }
  ObjectReader reader(*node);
  model.add_prefix_space = reader.require_as<bool>("add_prefix_space");
  model.use_regex = reader.get("use_regex", true);
}

// tokenizers gives a token that the model does not have the next free id and only warns if the file has another. Here
// both must agree, because the file does not tell which id the model was trained with.
void read_added_tokens(const JsonNode* node, ModelBuilder& builder) {
  if (node == nullptr || node->is_null()) {
    return;
  }
  std::unordered_map<std::string, int32_t> added;
  auto next = static_cast<int64_t>(builder.vocab_tokens());
  for (const JsonNode& entry : node->elements()) {
    ObjectReader reader(entry);
    AddedToken token;
    token.content = reader.require_as<std::string>("content");
    token.lstrip = reader.get("lstrip", false);
    token.rstrip = reader.get("rstrip", false);
    token.normalized = reader.get("normalized", true);
    if (token.content.empty()) {
      continue;
    }
    if (reader.get("single_word", false)) {
      fail(entry.where(), concat("the added token \"", token.content, "\" has single_word, which is not supported"),
           "Set it to false if whole words are not needed.");
    }
    const auto in_model = builder.id_of(token.content);
    const int64_t expected = in_model ? *in_model : next;
    const int64_t id = reader.require_as<int64_t>("id");
    if (!added.emplace(token.content, id).second) {
      fail(entry.where(), concat("the added token \"", token.content, "\" appears twice"));
    }
    if (id != expected) {
      fail(entry.where(),
           concat("the added token \"", token.content, "\" has the id ", id, ", but ",
                  in_model ? "the vocabulary gives it " : "its position gives it ", expected),
           "Save the file again with Hugging Face tokenizers and check which id the model was trained with.");
    }
    token.id = static_cast<int32_t>(id);
    next = std::max(next, id + 1);
    builder.model.added.push_back(std::move(token));
  }
}

} // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(const fs::path& file) {
  const JsonNode root = JsonNode::parse_file(file);
  ObjectReader reader(root);
  if (const JsonNode* normalizer = reader.find("normalizer"); normalizer != nullptr && !normalizer->is_null()) {
    fail(normalizer->where(), concat("the normalizer \"", type_of(*normalizer), "\" is not supported"), kSupported);
  }
  const JsonNode* decoder = reader.find("decoder");
  if (decoder != nullptr && !decoder->is_null() && type_of(*decoder) != "ByteLevel") {
    fail(decoder->where(), concat("the decoder \"", type_of(*decoder), "\" is not supported"), kSupported);
  }
  ModelBuilder builder;
  // Checks the type first: it explains more than other differences of such a file.
  const JsonNode& model = reader.require("model");
  if (const std::string type = type_of(model); type != "BPE" && type != "?") {
    fail(model.where(), concat("the model type \"", type, "\" is not supported"), kSupported);
  }
  read_pre_tokenizer(reader.find("pre_tokenizer"), file.string(), builder.model);
  read_model(model, builder);
  read_added_tokens(reader.find("added_tokens"), builder);
  return std::make_unique<ByteLevelBpe>(builder.model, file.string());
}

std::unique_ptr<Tokenizer> read_vocab_and_merges(const fs::path& vocab, const fs::path& merges) {
  ModelBuilder builder;
  builder.add_vocab(JsonNode::parse_file(vocab));
  std::vector<std::string> lines = split(plain_text("data", merges.string(), read_file(merges)), '\n');
  while (!lines.empty() && (lines.back().empty() || lines.back() == "\r")) {
    lines.pop_back();
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string& line = lines[i];
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (!is_version_line(line)) {
      builder.add_merge(line, concat(merges.string(), ':', i + 1));
    }
  }
  constexpr const char* kEndOfText = "<|endoftext|>";
  if (const auto id = builder.id_of(kEndOfText)) {
    builder.model.added.push_back({kEndOfText, *id});
  }
  return std::make_unique<ByteLevelBpe>(builder.model, vocab.string());
}

} // namespace trireme::data
