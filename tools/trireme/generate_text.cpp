#include "generate_text.h"

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/device/choose.h>
#include <trireme/device/move.h>
#include <trireme/generate/load.h>
#include <trireme/generate/sample.h>
#include <trireme/monitor/html.h>

#include <nlohmann/json.hpp>

#include <iostream>

namespace trireme::tools {

int generate_text(const GenerateCommand& command) {
  generate::Trained trained = generate::load(command.checkpoint);
  device::move(*trained.model.module(), device::choose("auto", 0, 1));
  std::vector<int32_t> prompt;
  if (trained.tokenizer) {
    prompt = trained.tokenizer->encode(command.prompt);
  } else { // trained on raw tokens: the prompt is token ids
    for (const std::string& word : split(command.prompt, ' ')) {
      try {
        if (!word.empty()) {
          prompt.push_back(std::stoi(word));
        }
      } catch (const std::exception&) {
        throw InputError("generate", concat('"', word, "\" is not a token number"),
                         "This model was trained on raw tokens and has no tokenizer: give the prompt as numbers.");
      }
    }
  }
  generate::SampleOptions options;
  options.tokens = command.tokens;
  options.temperature = command.temperature;
  options.top_k = command.top_k;
  options.seed = command.seed;
  options.vocab_size = trained.tokenizer ? trained.tokenizer->vocab_size() : 0;
  const std::vector<int32_t> tokens = generate::sample(trained.model, prompt, options);
  std::string text;
  if (trained.tokenizer) {
    text = monitor::clean_utf8(trained.tokenizer->decode(tokens));
  } else {
    std::vector<std::string> words;
    for (const int32_t token : tokens) {
      words.push_back(std::to_string(token));
    }
    text = join(words, " ");
  }
  if (command.json) {
    std::cout << nlohmann::json(
                     {{"text", text}, {"tokens", tokens}, {"prompt_tokens", prompt.size()}, {"step", trained.step}})
                     .dump()
              << '\n';
  } else {
    std::cout << text << '\n';
  }
  return 0;
}

} // namespace trireme::tools
