#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::chat {

struct RenderOptions {
  /// Ends with the begin of the assistant's next message.
  bool add_generation_prompt = false;
  /// Ends within the last message, so that a model continues it. Excludes add_generation_prompt.
  bool continue_final_message = false;
  /// JSON schemas of functions; null: none.
  nlohmann::ordered_json tools = nullptr;
  /// Objects with "title" and "text"; null: none.
  nlohmann::ordered_json documents = nullptr;
  /// More variables, such as enable_thinking. They override special tokens.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  /// What strftime_now() shows; none: the local time.
  std::optional<std::tm> now = std::nullopt;
  /// Limits of one rendering: bytes of a text, and steps (an expression, an element, 16 bytes of text that is made,
  /// copied or searched). Whatever the template, the defaults allow some seconds and about 1 GB.
  size_t max_bytes = size_t{64} << 20;
  uint64_t max_steps = 50'000'000;
};

struct Rendered {
  std::string text;
  /// First byte and the one behind the last of what each {% generation %} block gave: the assistant's own words.
  std::vector<std::pair<size_t, size_t>> generated;
};

/// A chat template: Jinja as Hugging Face's transformers compiles it (docs/chat_templates.md lists what is supported).
/// Immutable: any number of threads may render at once.
class ChatTemplate {
 public:
  /// `source` names the template in messages. `special_tokens`: variables such as bos_token. Errors: InputError with
  /// `source` and line.
  static ChatTemplate parse(std::string_view text, const std::string& source,
                            nlohmann::ordered_json special_tokens = nlohmann::ordered_json::object());

  /// Renders a conversation: an array of objects with "role" and "content", whose other keys the template may read.
  /// As transformers' apply_chat_template: keys with null are left out, and the first of reasoning_content, thinking
  /// and reasoning also fills the first two. Tokenize the text without adding special tokens, which it has.
  /// Errors: InputError with source and line, also with what the template says by raise_exception().
  std::string render(const nlohmann::ordered_json& messages, const RenderOptions& options = {}) const;
  Rendered render_with_spans(const nlohmann::ordered_json& messages, const RenderOptions& options = {}) const;

  const nlohmann::ordered_json& special_tokens() const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const Parsed> parsed_;
};

/// The template `name` of a model's or a tokenizer's folder, where transformers looks for it: chat_template.jinja, or
/// additional_chat_templates/NAME.jinja for another name, or else "chat_template" of tokenizer_config.json, which is
/// a text or a list of {"name", "template"}. Special tokens are those of tokenizer_config.json and
/// special_tokens_map.json. none: the folder has no such template. Errors: InputError for damaged files.
std::optional<ChatTemplate> read_chat_template(const std::filesystem::path& folder,
                                               const std::string& name = "default");

/// Whether a user means a file: it has a slash in its path, or the ending .jinja. Other words name a template.
bool is_template_file(std::string_view file_or_name);

/// The template that a user names: a file (is_template_file()), or the template of that name in `folder` (empty: none).
/// Special tokens are those of the folder. none: there is no such one. Errors: InputError for damaged files.
std::optional<ChatTemplate> find_chat_template(const std::string& file_or_name, const std::filesystem::path& folder);
/// Its text, unparsed.
std::optional<std::string> find_chat_template_text(const std::string& file_or_name,
                                                   const std::filesystem::path& folder);

} // namespace trireme::chat
