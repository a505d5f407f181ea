#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

// What transformers' apply_chat_template does to a conversation before and after the template.
namespace trireme::chat {

/// A copy without keys whose value is null, with reasoning under each of its names. Errors: InputError unless it is a
/// non-empty array of objects.
nlohmann::ordered_json prepare_messages(const nlohmann::ordered_json& messages);

/// A message that ends with a mark, at which the rendered text is cut.
class FinalMessage {
 public:
  /// Marks the last of `messages`. Errors: InputError if it has no text to continue.
  explicit FinalMessage(nlohmann::ordered_json& messages);

  /// The text up to the mark. Errors: InputError if the template did not keep the message.
  std::string cut(const std::string& rendered) const;

 private:
  std::string text_;
};

} // namespace trireme::chat
