#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/json.h>
#include <trireme/chat/chat_template.h>

namespace trireme::chat {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

std::optional<JsonNode> read_object(const fs::path& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) {
    return std::nullopt;
  }
  JsonNode root = JsonNode::parse_file(file);
  return root.is_object() ? std::optional(std::move(root)) : std::nullopt;
}

// A token is a text, or an object with "content".
void add_special_tokens(const JsonNode& from, ordered_json& tokens) {
  for (const char* name : kSpecialTokens) {
    const JsonNode* token = from.find(name);
    if (token != nullptr && token->is_object()) {
      token = token->find("content");
    }
    if (token != nullptr && token->kind() == JsonNode::Kind::string && !tokens.contains(name)) {
      tokens[name] = token->as_string();
    }
  }
}

// The text of template `name` in "chat_template".
std::optional<std::string> find_template(const JsonNode& config, const std::string& name) {
  const JsonNode* const node = config.find("chat_template");
  if (node == nullptr || node->is_null()) {
    return std::nullopt;
  }
  if (node->kind() != JsonNode::Kind::array) {
    return name == "default" ? std::optional(node->as_string()) : std::nullopt;
  }
  for (const JsonNode& entry : node->elements()) {
    ObjectReader reader(entry);
    if (reader.require_as<std::string>("name") == name) {
      return reader.require_as<std::string>("template");
    }
  }
  return std::nullopt;
}

ordered_json special_tokens_of(const std::optional<JsonNode>& config, const fs::path& folder) {
  ordered_json tokens = ordered_json::object();
  if (config) {
    add_special_tokens(*config, tokens);
  }
  if (const auto map = read_object(folder / "special_tokens_map.json")) {
    add_special_tokens(*map, tokens);
  }
  return tokens;
}

struct TemplateText {
  std::string text;
  std::string source;
};

// `config`: of the folder's tokenizer, if it has one.
std::optional<TemplateText> text_in(const fs::path& folder, const std::string& name,
                                    const std::optional<JsonNode>& config) {
  const fs::path file =
      name == "default" ? folder / "chat_template.jinja" : folder / "additional_chat_templates" / (name + ".jinja");
  std::error_code ignored;
  if (fs::is_regular_file(file, ignored)) {
    return TemplateText{read_file(file), file.string()};
  }
  const auto text = config ? find_template(*config, name) : std::nullopt;
  return text ? std::optional(
                    TemplateText{*text, concat((folder / "tokenizer_config.json").string(), ": chat_template")})
              : std::nullopt;
}

std::optional<TemplateText> find_text(const std::string& file_or_name, const fs::path& folder,
                                      const std::optional<JsonNode>& config) {
  if (!is_template_file(file_or_name)) {
    return folder.empty() ? std::nullopt : text_in(folder, file_or_name, config);
  }
  std::error_code ignored;
  return fs::is_regular_file(file_or_name, ignored) ? std::optional(TemplateText{read_file(file_or_name), file_or_name})
                                                    : std::nullopt;
}

// Of a tokenizer's folder; empty: none.
std::optional<JsonNode> config_in(const fs::path& folder) {
  return folder.empty() ? std::nullopt : read_object(folder / "tokenizer_config.json");
}

std::optional<ChatTemplate> parsed(const std::optional<TemplateText>& found, const std::optional<JsonNode>& config,
                                   const fs::path& folder) {
  if (!found) {
    return std::nullopt;
  }
  return ChatTemplate::parse(found->text, found->source,
                             folder.empty() ? ordered_json::object() : special_tokens_of(config, folder));
}

} // namespace

std::optional<ChatTemplate> read_chat_template(const fs::path& folder, const std::string& name) {
  const auto config = config_in(folder);
  return parsed(text_in(folder, name, config), config, folder);
}

bool is_template_file(std::string_view file_or_name) {
  return file_or_name.find('/') != std::string_view::npos || file_or_name.ends_with(".jinja");
}

std::optional<ChatTemplate> find_chat_template(const std::string& file_or_name, const fs::path& folder) {
  const auto config = config_in(folder);
  return parsed(find_text(file_or_name, folder, config), config, folder);
}

std::optional<std::string> find_chat_template_text(const std::string& file_or_name, const fs::path& folder) {
  const auto found = find_text(file_or_name, folder, config_in(folder));
  return found ? std::optional(found->text) : std::nullopt;
}

} // namespace trireme::chat
