#include <trireme/generate/chat_prompt.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <utility>

namespace trireme::generate {
namespace {

chat::ChatTemplate require_template(const Trained& trained) {
  const std::string next = "Put the chat_template.jinja that the model was trained with there, or leave out --chat.";
  if (!trained.tokenizer) {
    throw InputError("generate", concat(trained.files.string(), " has no tokenizer, so there is no chat template"),
                     next);
  }
  auto found = chat::read_chat_template(trained.files);
  if (!found) {
    throw InputError("generate", concat(trained.files.string(), " has no chat template"), next);
  }
  return *std::move(found);
}

} // namespace

ChatPrompt::ChatPrompt(const Trained& trained, std::string system)
    : tokenizer_(trained.tokenizer),
      template_(require_template(trained)),
      system_(std::move(system)),
      end_tokens_(trained.end_tokens) {
  const auto& tokens = template_.special_tokens();
  if (!tokens.contains("eos_token")) {
    return;
  }
  const auto ids = tokenizer_->encode(tokens["eos_token"].get<std::string>());
  if (ids.size() == 1 && std::ranges::find(end_tokens_, ids.front()) == end_tokens_.end()) {
    end_tokens_.push_back(ids.front());
  }
}

std::string ChatPrompt::text_of(const std::string& message) const {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!system_.empty()) {
    messages.push_back({{"role", "system"}, {"content", system_}});
  }
  messages.push_back({{"role", "user"}, {"content", message}});
  chat::RenderOptions options;
  options.add_generation_prompt = true;
  return template_.render(messages, options);
}

std::vector<int32_t> ChatPrompt::ids_of(const std::string& message) const {
  return tokenizer_->encode(text_of(message), /*add_special_tokens=*/false);
}

} // namespace trireme::generate
