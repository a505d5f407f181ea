#include <trireme/chat/chat_template.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/chat/interpreter.h>
#include <trireme/chat/messages.h>
#include <trireme/chat/parser.h>

#include <algorithm>

namespace trireme::chat {

using nlohmann::ordered_json;

struct ChatTemplate::Parsed {
  std::string source;
  Body body;
  bool reads_content = false; // else no message can be continued
  ordered_json special_tokens;
};

namespace {

void check_options(const RenderOptions& options) {
  if (options.continue_final_message && options.add_generation_prompt) {
    throw InputError("chat", "continue_final_message and add_generation_prompt exclude each other",
                     "Continue the last message, or begin a new one.");
  }
  for (const auto& [name, list] : {std::pair("tools", &options.tools), std::pair("documents", &options.documents)}) {
    const bool fits =
        list->is_null() ||
        (list->is_array() && std::ranges::all_of(*list, [](const ordered_json& item) { return item.is_object(); }));
    if (!fits) {
      throw InputError("chat", concat(name, " must be a list of objects"),
                       concat("Give [{...}], or leave out ", name, "."));
    }
  }
}

void set_variables(Interpreter& interpreter, const ordered_json& variables, Budget& budget) {
  for (const auto& [name, value] : variables.items()) {
    interpreter.set_variable(name, from_json(value, budget));
  }
}

} // namespace

ChatTemplate ChatTemplate::parse(std::string_view text, const std::string& source, ordered_json special_tokens) {
  auto parsed = std::make_shared<Parsed>();
  parsed->source = source;
  parsed->body = parse_template(text, source);
  parsed->reads_content = text.find("content") != std::string_view::npos;
  parsed->special_tokens = std::move(special_tokens);
  return ChatTemplate(std::move(parsed));
}

const ordered_json& ChatTemplate::special_tokens() const {
  return parsed_->special_tokens;
}

std::string ChatTemplate::render(const ordered_json& messages, const RenderOptions& options) const {
  return render_with_spans(messages, options).text;
}

Rendered ChatTemplate::render_with_spans(const ordered_json& messages, const RenderOptions& options) const {
  check_options(options);
  ordered_json prepared = prepare_messages(messages);
  std::optional<FinalMessage> final_message;
  if (options.continue_final_message) {
    if (!parsed_->reads_content) {
      throw InputError("chat", concat(parsed_->source, ": the chat template reads no \"content\" to continue"),
                       "Leave out continue_final_message.");
    }
    final_message.emplace(prepared);
  }
  Budget budget(options.max_bytes, options.max_steps);
  Interpreter interpreter(budget, options.now);
  Rendered rendered;
  try {
    set_variables(interpreter, parsed_->special_tokens, budget);
    set_variables(interpreter, options.variables, budget);
    interpreter.set_variable("messages", from_json(prepared, budget));
    interpreter.set_variable("tools", from_json(options.tools, budget));
    interpreter.set_variable("documents", from_json(options.documents, budget));
    interpreter.set_variable("add_generation_prompt", options.add_generation_prompt);
    rendered.text = interpreter.run(parsed_->body);
  } catch (const RaisedByTemplate& error) {
    fail_at(parsed_->source, interpreter.line(),
            concat("the chat template refuses this conversation: ", clean_utf8(error.what())),
            "Change the messages as it says.");
  } catch (const NotSupported& error) {
    fail_at(parsed_->source, interpreter.line(), clean_utf8(error.what()),
            "Change the template to use what is supported (docs/chat_templates.md).");
  } catch (const TemplateError& error) {
    fail_at(parsed_->source, interpreter.line(), clean_utf8(error.what()),
            "The chat template cannot render these messages: compare their keys with those it reads.");
  }
  rendered.generated = interpreter.generated();
  if (final_message) {
    rendered.text = final_message->cut(rendered.text);
    std::erase_if(rendered.generated, [&](const auto& span) { return span.first >= rendered.text.size(); });
    for (auto& span : rendered.generated) {
      span.second = std::min(span.second, rendered.text.size());
    }
  }
  return rendered;
}

} // namespace trireme::chat
