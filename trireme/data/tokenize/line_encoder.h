#pragma once

#include <trireme/chat/chat_template.h>
#include <trireme/data/tokenize/json_line.h>
#include <trireme/tokenizer/tokenizer.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// The tokens of the document of a JSON line.
struct EncodedLine {
  std::vector<int32_t> ids;
  /// 1 for each of `ids` that counts as a target of the loss, else 0. Empty: all count.
  std::vector<uint8_t> counted;
  int64_t text_bytes = 0;
  bool has_end = false; ///< a conversation, whose template ends it
};

/// Encodes the documents of JSON lines. Of a text all tokens count, of a prompt with its response those of the
/// response, of a conversation those of the assistant (counted_text.h). Any number of threads may use it.
class LineEncoder {
 public:
  /// `tokenizer_name`: what make_tokenizer() got; the chat template lies with its files.
  LineEncoder(const tokenizer::Tokenizer& tokenizer, std::string tokenizer_name, JsonLineOptions options)
      : tokenizer_(tokenizer), tokenizer_name_(std::move(tokenizer_name)), options_(std::move(options)) {}

  /// Errors: InputError at `where` (file and line) as read_json_line(), render_conversation() and find_counted(), and
  /// for a conversation if the tokenizer has no chat template.
  EncodedLine encode(std::string_view line, const std::string& where) const;

 private:
  EncodedLine encode(JsonLine line) const;
  const chat::ChatTemplate& chat_template() const;

  const tokenizer::Tokenizer& tokenizer_;
  std::string tokenizer_name_;
  JsonLineOptions options_;
  mutable std::mutex mutex_;
  mutable std::optional<chat::ChatTemplate> template_; // read when a line needs it
};

} // namespace trireme::data
