// Any text for tokenizers that are in order: the readers of UTF-8, of words and of tokens, and threads.
#include "fuzz.h"

#include <trireme/tokenizer/read_tokenizer.h>
#include <trireme/tokenizer/unicode.h>

#include <memory>
#include <vector>

using namespace trireme;
using namespace trireme::fuzz;

namespace {

std::unique_ptr<tokenizer::Tokenizer> make(const std::string& content) {
  return tokenizer::read_tokenizer_json(MemoryFile(content).path());
}

/// A token for every byte, some merges, and added tokens, one of which is not to be inside of words. Its letter stands
/// for no byte: Hugging Face decodes "<é>" as a byte that is not UTF-8.
std::string byte_level(const char* pre_tokenizer) {
  std::string vocab;
  for (int byte = 0, next = 0x100; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    std::string c;
    tokenizer::append_utf8(c, static_cast<char32_t>(printable ? byte : next++));
    vocab += concat('"', c == "\"" || c == "\\" ? "\\" : "", c, "\": ", byte, ", ");
  }
  return concat(R"({"added_tokens": [{"id": 260, "content": "<e>", "normalized": false},
                                     {"id": 261, "content": "<ж>", "single_word": true, "normalized": false}],
      "pre_tokenizer": )",
                pre_tokenizer, R"(, "decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "vocab": {)",
                vocab, R"("ab": 256, "Ġab": 257, "ĠabĠab": 258, "'s": 259},
                "merges": ["a b", "Ġ ab", "Ġab Ġab", "' s"]}})");
}

constexpr const char* kWords = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
constexpr const char* kPieces = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
constexpr const char* kLlama = R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated",
    "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";

/// Tokenizers that lose something of a text.
const std::vector<std::string> kOthers = {
    R"({"normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "##a": 2, "ab": 3, "##e": 4, "漢": 5}}})",
    R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "NFKC"},
          {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "StripAccents"}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, "decoder": {"type": "Metaspace"},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["▁", -1], ["a", -2], ["▁a", -2.5], ["aa", -3]]}})",
    R"({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "a", "byte_fallback": true, "fuse_unk": true, "merges": ["▁ a", "a a"],
                  "vocab": {"▁": 0, "a": 1, "▁a": 2, "aa": 3, "<0xC3>": 4, "<0xA9>": 5, "<0x0A>": 6}}})"};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto words = make(byte_level(kWords));
  static const auto pieces = make(byte_level(kPieces));
  static const auto llama = make(byte_level(kLlama));
  static const auto others = [] {
    std::vector<std::unique_ptr<tokenizer::Tokenizer>> made;
    for (const std::string& content : kOthers) {
      made.push_back(make(content));
    }
    return made;
  }();
  const std::string_view text = text_of(data, size);
  const std::string valid = tokenizer::replace_invalid_utf8(text);
  require(tokenizer::valid_utf8_prefix(valid) == valid.size(), "what was replaced is UTF-8");
  for (const tokenizer::Tokenizer* one : {words.get(), pieces.get(), llama.get()}) {
    require(one->decode(one->encode(text)) == valid, "decode undoes encode");
  }
  for (const auto& one : others) {
    const std::vector<int32_t> ids = one->encode(text);
    require(one->encode(valid) == ids, "what is not UTF-8 is U+FFFD");
    const std::string decoded = one->decode(ids);
    require(tokenizer::valid_utf8_prefix(decoded) == decoded.size(), "texts are UTF-8");
  }
  return 0;
}
