#pragma once

#include <trireme/chat/chat_template.h>
#include <trireme/tokenizer/tokenizer.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::data {

/// A text and the parts of it that a model should learn to say.
struct CountedText {
  using Span = std::pair<size_t, size_t>; ///< the first byte, and the one behind the last
  std::string text;
  std::vector<Span> counted; ///< in order
};

/// Renders a conversation. What counts is what {% generation %} blocks of the template give. A template without them
/// is rendered for the messages before each of the assistant's, too: what it adds for that message behind the begin of
/// an answer counts, without spaces at its end. Cost then: a rendering for each message of the assistant, twice.
///
/// Errors: InputError as ChatTemplate::render_with_spans(), and if a template without blocks changes earlier text when
/// a message follows, or if it would render too much: more than 250 of the assistant's messages or 256 MB of text.
CountedText render_conversation(const chat::ChatTemplate& chat_template, const nlohmann::ordered_json& messages,
                                const nlohmann::ordered_json& tools);

/// For each of `ids`, the tokens of `text`, 1 if a byte of it is counted, else 0. Tokens are found in the text by what
/// they decode to, spaces left aside. If that is not the text (a tokenizer that changes letters), the text is cut at
/// the spans' ends and encoded again. Cost: one pass, else one encoding for each end.
/// Errors: InputError if tokens of that tokenizer go over the ends of spans.
std::vector<uint8_t> find_counted(const CountedText& text, std::span<const int32_t> ids,
                                  const tokenizer::Tokenizer& tokenizer);

} // namespace trireme::data
