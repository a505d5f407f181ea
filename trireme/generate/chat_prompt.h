#pragma once

#include <trireme/chat/chat_template.h>
#include <trireme/generate/load.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::generate {

/// Turns a user's message into the tokens after which a model answers, by the chat template of its tokenizer.
class ChatPrompt {
 public:
  /// `system`: the message of the system before it; empty: none. Errors: InputError for a model without a tokenizer or
  /// without a chat template, and for a damaged template.
  ChatPrompt(const Trained& trained, std::string system);

  /// The conversation as text, with the begin of the answer. Errors: InputError as ChatTemplate::render().
  std::string text_of(const std::string& message) const;
  /// Its tokens. Special tokens are those of the template; the tokenizer adds none.
  std::vector<int32_t> ids_of(const std::string& message) const;
  /// Tokens with which an answer ends: the model's, and the tokenizer's eos_token.
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }

 private:
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  chat::ChatTemplate template_;
  std::string system_;
  std::vector<int32_t> end_tokens_;
};

} // namespace trireme::generate
