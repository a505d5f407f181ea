#include <trireme/chat/messages.h>

#include <trireme/base/error.h>
#include <trireme/chat/characters.h>

#include <algorithm>

namespace trireme::chat {
namespace {

using nlohmann::ordered_json;

// transformers' own, so that templates see the same text.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";

constexpr const char* kReasoning[] = {"reasoning_content", "thinking", "reasoning"};

[[noreturn]] void refuse(const std::string& what, const std::string& next) {
  throw InputError("chat", what, next);
}

ordered_json without_nulls(const ordered_json& message) {
  ordered_json kept = ordered_json::object();
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) {
      kept[key] = value;
    }
  }
  return kept;
}

// "thinking" comes first unless it is there, "reasoning_content" last.
ordered_json with_reasoning(ordered_json message) {
  const auto found = std::ranges::find_if(kReasoning, [&](const char* key) { return message.contains(key); });
  if (found == std::end(kReasoning)) {
    return message;
  }
  const ordered_json reasoning = message[*found];
  ordered_json all = ordered_json::object();
  all["thinking"] = reasoning;
  for (const auto& [key, value] : message.items()) {
    all[key] = value;
  }
  all["reasoning_content"] = reasoning;
  return all;
}

} // namespace

ordered_json prepare_messages(const ordered_json& messages) {
  if (!messages.is_array() || messages.empty()) {
    refuse("a conversation is a list of at least one message", R"(Give [{"role": "user", "content": "..."}].)");
  }
  ordered_json prepared = ordered_json::array();
  for (const auto& message : messages) {
    if (!message.is_object()) {
      refuse(concat("a message is not an object but a ", message.type_name()),
             R"(Give {"role": "user", "content": "..."}.)");
    }
    prepared.push_back(with_reasoning(without_nulls(message)));
  }
  return prepared;
}

FinalMessage::FinalMessage(ordered_json& messages) {
  ordered_json& message = messages.back();
  const auto content = message.find("content");
  if (content != message.end() && content->is_string()) {
    text_ = content->get<std::string>();
    *content = concat(text_, kMark);
    return;
  }
  if (content != message.end() && content->is_array()) {
    const auto block = std::find_if(content->rbegin(), content->rend(), [](const ordered_json& part) {
      return part.is_object() && part.contains("text") && part["text"].is_string();
    });
    if (block != content->rend()) {
      text_ = (*block)["text"].get<std::string>();
      (*block)["text"] = concat(text_, kMark);
      return;
    }
  }
  refuse("the last message has no text to continue", "Give it a \"content\", or leave out continue_final_message.");
}

std::string FinalMessage::cut(const std::string& rendered) const {
  const std::string_view mark = strip(kMark, Side::both);
  const size_t found = rendered.rfind(mark);
  if (found == std::string::npos || find_first(rendered, strip(text_, Side::both)) == std::string_view::npos) {
    refuse("the chat template does not keep the end of the last message, so it cannot be continued",
           "Leave out continue_final_message, or change the last message.");
  }
  const std::string_view before = std::string_view(rendered).substr(0, found);
  const bool keeps_spaces = std::string_view(rendered).substr(found).starts_with(kMark);
  return std::string(keeps_spaces ? before : strip(before, Side::right));
}

} // namespace trireme::chat
