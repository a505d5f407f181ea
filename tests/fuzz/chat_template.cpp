// A chat template, and the messages it renders.
#include "fuzz.h"

#include <trireme/chat/chat_template.h>
#include <trireme/tokenizer/unicode.h>

using namespace trireme;
using namespace trireme::fuzz;

/// The template, and after a byte 0x01 the messages as JSON; without one, a conversation of two.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using nlohmann::ordered_json;
  std::string_view rest = text_of(data, size);
  const std::string_view text = take_until(rest, '\x01');
  ordered_json messages = ordered_json::parse(rest, nullptr, /*allow_exceptions=*/false);
  if (messages.is_discarded()) {
    messages = ordered_json::parse(R"([{"role": "user", "content": "Hi é"}, {"role": "assistant", "content": "<b>"}])");
  }
  allow_input_error([&] {
    const auto parsed = chat::ChatTemplate::parse(text, "fuzz", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    for (const bool continues : {false, true}) {
      chat::RenderOptions options;
      options.add_generation_prompt = !continues;
      options.continue_final_message = continues;
      options.now = std::tm{};
      options.max_bytes = size_t{1} << 20;
      options.max_steps = 200'000;
      const chat::Rendered rendered = parsed.render_with_spans(messages, options);
      require(tokenizer::valid_utf8_prefix(rendered.text) == rendered.text.size(), "the text is UTF-8");
      require(parsed.render(messages, options) == rendered.text, "a template renders the same again");
      for (const auto& [begin, end] : rendered.generated) {
        require(begin <= end, "spans are in order");
      }
    }
  });
  return 0;
}
