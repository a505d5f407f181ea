#include <trireme/tokenizer/word_piece.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tokenizer/part_json.h>

#include <algorithm>

namespace trireme::tokenizer {

WordPiece::WordPiece(Vocabulary vocabulary, Options options, std::string source)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)), source_(std::move(source)) {
  const std::vector<std::string>& tokens = vocabulary_.tokens();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) {
      trie_.add(tokens[id], static_cast<int32_t>(id));
    }
  }
  continuing_ = trie_.walk(Trie::kRoot, options_.continuing_subword_prefix);
}

bool WordPiece::take_apart(std::string_view word, std::vector<int32_t>& out) const {
  const auto is_first_byte = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  if (std::ranges::count_if(word, is_first_byte) > options_.max_input_chars_per_word) {
    return false;
  }
  for (size_t at = 0; at < word.size();) {
    uint32_t node = at == 0 ? Trie::kRoot : continuing_;
    int32_t found = -1;
    size_t found_end = at;
    for (size_t end = at; end < word.size() && node != Trie::kNowhere;) {
      node = trie_.step(node, word[end]);
      ++end;
      if (node != Trie::kNowhere && trie_.value(node) >= 0) {
        found = trie_.value(node);
        found_end = end;
      }
    }
    if (found < 0) {
      return false;
    }
    out.push_back(found);
    at = found_end;
  }
  return true;
}

void WordPiece::encode(std::string_view word, std::vector<int32_t>& out) const {
  const size_t begin = out.size();
  if (take_apart(word, out)) {
    return;
  }
  out.resize(begin);
  const auto unknown = vocabulary_.id_of(options_.unk_token);
  if (!unknown) {
    throw InputError("tokenizer",
                     concat(source_, " cannot take \"", printable(word.substr(0, 60)),
                            "\" apart, and the vocabulary has no unknown token \"", printable(options_.unk_token), '"'),
                     "Add it to the vocabulary.");
  }
  out.push_back(*unknown);
}

std::unique_ptr<Model> read_word_piece(ObjectReader& reader) {
  WordPiece::Options options;
  options.unk_token = reader.get("unk_token", options.unk_token);
  options.continuing_subword_prefix = reader.get("continuing_subword_prefix", options.continuing_subword_prefix);
  options.max_input_chars_per_word = reader.get("max_input_chars_per_word", options.max_input_chars_per_word);
  Vocabulary vocabulary = read_vocabulary(reader.require("vocab"));
  reader.finish();
  const std::string& where = reader.node().where();
  return std::make_unique<WordPiece>(std::move(vocabulary), std::move(options), source_of(where));
}

} // namespace trireme::tokenizer
