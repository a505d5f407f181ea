#pragma once

#include <trireme/chat/chat_template.h>
#include <trireme/data/loss_on.h>
#include <trireme/data/tokenize/json_line.h>
#include <trireme/tokenizer/tokenizer.h>

#include <cstdint>
#include <filesystem>
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

struct LineOptions {
  /// Which keys of a line are read.
  JsonLineOptions keys{};
  LossOn loss_on = LossOn::response;
  /// As chat::find_chat_template() takes it; empty: the default one in the folder of the tokenizer's files.
  std::string chat_template{};
  /// For messages: where chat_template was said, "run.json:7:5: data.chat_template".
  std::string place = "--chat-template";
};

/// Encodes the documents of JSON lines. What the assistant says in a conversation is found as counted_text.h has it.
/// Any number of threads may use it.
class LineEncoder {
 public:
  /// `tokenizer_name`: what make_tokenizer() got. Errors: InputError for a chat_template that is not there.
  LineEncoder(const tokenizer::Tokenizer& tokenizer, std::string tokenizer_name, LineOptions options);

  /// Errors: InputError at `where` (file and line) as read_json_line(), render_conversation() and find_counted(), and
  /// for a conversation if the tokenizer has no chat template.
  EncodedLine encode(std::string_view line, const std::string& where) const;

 private:
  EncodedLine encode(JsonLine line) const;
  std::filesystem::path folder() const;
  const chat::ChatTemplate& chat_template() const;

  const tokenizer::Tokenizer& tokenizer_;
  std::string tokenizer_name_;
  LineOptions options_;
  mutable std::mutex mutex_;
  mutable std::optional<chat::ChatTemplate> template_; // the tokenizer's is read when a line needs it
};

} // namespace trireme::data
