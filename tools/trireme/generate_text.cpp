#include "generate_text.h"

#include "read_prompts.h"

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/comm/differences.h>
#include <trireme/comm/world.h>
#include <trireme/device/choose.h>
#include <trireme/device/move.h>
#include <trireme/generate/chat_prompt.h>
#include <trireme/generate/choose_token.h>
#include <trireme/generate/load.h>
#include <trireme/generate/same_files.h>
#include <trireme/generate/sample.h>
#include <trireme/generate/weight_types.h>
#include <trireme/tokenizer/unicode.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <utility>

namespace trireme::tools {
namespace {

using Ids = std::vector<int32_t>;
using Clock = std::chrono::steady_clock;

// Text and token ids of a model. One that was trained on raw tokens reads and writes numbers.
class Words {
 public:
  /// `chat`: prompts are the messages of a user.
  Words(std::shared_ptr<const data::Tokenizer> tokenizer, std::optional<generate::ChatPrompt> chat)
      : tokenizer_(std::move(tokenizer)), chat_(std::move(chat)) {}

  bool is_chat() const { return chat_.has_value(); }

  Ids ids_of(const std::string& text) const {
    if (chat_) {
      return chat_->ids_of(text);
    }
    if (tokenizer_) {
      return tokenizer_->encode(text, /*add_special_tokens=*/true);
    }
    Ids ids;
    for (const std::string& word : split(text, ' ')) {
      try {
        if (!word.empty()) {
          ids.push_back(std::stoi(word));
        }
      } catch (const std::exception&) {
        throw InputError("generate", concat('"', word, "\" is not a token number"),
                         "This model was trained on raw tokens and has no tokenizer: give the prompt as numbers.");
      }
    }
    return ids;
  }

  std::string text_of(const Ids& ids) const {
    if (tokenizer_) {
      return tokenizer_->decode(ids, /*skip_special_tokens=*/true);
    }
    std::vector<std::string> words;
    for (const int32_t id : ids) {
      words.push_back(std::to_string(id));
    }
    return join(words, " ");
  }

 private:
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  std::optional<generate::ChatPrompt> chat_;
};

// What each rank does with them: ranks that wait for different numbers of tokens would hang.
void check_same_command(const GenerateCommand& command, const comm::Group& ranks) {
  const nlohmann::ordered_json own = {{"--batch", command.batch}, {"--max-tokens", command.sample.tokens},
                                      {"--dtype", command.dtype}, {"--weights", command.weights},
                                      {"--chat", command.chat},   {"--system", command.system},
                                      {"--stop", command.stop}};
  const auto found = comm::differences(ranks, own, "options of trireme generate");
  if (!found.empty()) {
    const comm::LeafDifference& first = found.front();
    throw InputError(
        "generate",
        concat(first.ranks(), " differ in ", first.path.substr(1), ": ", first.other(), " and ", first.first()),
        "Start all ranks with the same command.");
  }
}

// A prompt's text as it grows.
struct Growing {
  std::string prompt;
  Ids ids;            // of the prompt
  std::string before; // their text
  Ids added = {};     // after them
  size_t shown = 0;

  std::string continuation(const Words& words) const {
    Ids all = ids;
    all.insert(all.end(), added.begin(), added.end());
    const std::string whole = words.text_of(all);
    return whole.starts_with(before) ? whole.substr(before.size()) : words.text_of(added);
  }
};

// Where the first of the stop strings begins; npos: none.
size_t find_stop(const std::string& text, const std::vector<std::string>& stops) {
  size_t first = std::string::npos;
  for (const std::string& stop : stops) {
    first = std::min(first, text.find(stop));
  }
  return first;
}

// JSON has the controls from U+007F to U+009F as they are; a terminal would obey them.
std::string with_escaped_controls(const std::string& json) {
  std::string out;
  for (size_t i = 0; i < json.size(); ++i) {
    const auto byte = static_cast<unsigned char>(json[i]);
    const auto next = static_cast<unsigned char>(i + 1 < json.size() ? json[i + 1] : 0);
    const bool is_pair = byte == 0xC2U && next < 0xA0U;
    if (byte != 0x7FU && !is_pair) {
      out += json[i];
      continue;
    }
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", is_pair ? next : byte);
    out += escaped;
    i += is_pair ? 1 : 0;
  }
  return out;
}

class Batch {
 public:
  /// `ranks` split the model; the first one prints.
  Batch(const generate::Trained& trained, const GenerateCommand& command, const Words& words, const comm::Group& ranks)
      : trained_(trained), command_(command), words_(words), ranks_(ranks) {}

  void run(const std::vector<std::string>& prompts, int64_t first) {
    std::vector<Growing> texts;
    std::vector<Ids> ids;
    for (const std::string& prompt : prompts) {
      ids.push_back(words_.ids_of(prompt));
      generate::check_prompt(trained_.model, ids.back()); // before anything is printed
      warn_if_cut(ids.back().size(), first + std::ssize(texts));
      texts.push_back({.prompt = prompt, .ids = ids.back(), .before = words_.text_of(ids.back())});
    }
    generate::SampleOptions options = command_.sample;
    options.seed = static_cast<int64_t>(static_cast<uint64_t>(options.seed) + static_cast<uint64_t>(first));
    if (ranks_.rank() != 0) {
      generate::continue_prompts(trained_.model, ids, options, {}, ranks_);
      return;
    }
    const bool streams = !command_.json && prompts.size() == 1;
    if (streams && !words_.is_chat()) {
      std::cout << clean_utf8(texts.front().before) << std::flush;
    }
    const auto begin = Clock::now();
    auto after_first = begin;
    int64_t after = 0; // tokens after the first of each prompt
    const generate::OnToken on_token = [&](size_t prompt, int32_t token) {
      Growing& text = texts[prompt];
      text.added.push_back(token);
      if (text.added.size() == 1) {
        after_first = Clock::now();
      } else {
        ++after;
      }
      if (!streams && command_.stop.empty()) {
        return false;
      }
      std::string continuation = text.continuation(words_);
      const bool stops = find_stop(continuation, command_.stop) != std::string::npos;
      if (streams) {
        show(text, cut(std::move(continuation)), /*all=*/false);
      }
      return stops;
    };
    generate::continue_prompts(trained_.model, ids, options, on_token, ranks_);
    const double seconds = std::chrono::duration<double>(Clock::now() - after_first).count();
    const double reading = std::chrono::duration<double>(after_first - begin).count();
    size_t read = 0;
    for (const Growing& text : texts) {
      read += text.ids.size();
    }
    for (Growing& text : texts) {
      if (streams) {
        show(text, cut(text.continuation(words_)), /*all=*/true);
        std::cout << '\n';
      } else {
        print(text, after > 0 ? static_cast<double>(after) / seconds : 0,
              reading > 0 ? static_cast<double>(read) / reading : 0);
      }
    }
  }

 private:
  // Once: --json has the tokens of each prompt.
  void warn_if_cut(size_t tokens, int64_t index) {
    const int64_t cut = static_cast<int64_t>(tokens) - trained_.model.most_tokens();
    if (cut > 0 && !warned_ && ranks_.rank() == 0) {
      warned_ = true;
      log::warning("Prompt ", index + 1, " has ", tokens, " tokens and the model ", trained_.model.most_tokens(),
                   " positions: its first ", cut, cut == 1 ? " token is" : " tokens are", " not read.",
                   command_.prompts.empty() ? "" : " Later prompts are cut without a warning.");
    }
  }

  // Up to the first stop string.
  std::string cut(std::string continuation) const {
    continuation.resize(std::min(continuation.size(), find_stop(continuation, command_.stop)));
    return continuation;
  }

  // Holds back what may be the beginning of a stop string or of a character.
  void show(Growing& text, const std::string& whole, bool all) const {
    size_t held = 3;
    for (const std::string& stop : command_.stop) {
      held = std::max(held, stop.size());
    }
    size_t end = all ? whole.size() : whole.size() - std::min(whole.size(), held);
    while (!all && end > 0 && (static_cast<unsigned char>(whole[end]) & 0xC0U) == 0x80U) { // inside of a character
      --end;
    }
    if (end > text.shown) {
      std::cout << clean_utf8(whole.substr(text.shown, end - text.shown)) << std::flush;
      text.shown = end;
    }
  }

  void print(const Growing& text, double tokens_per_s, double prompt_tokens_per_s) const {
    const std::string continuation = cut(text.continuation(words_));
    if (!command_.json) {
      std::cout << clean_utf8(text.prompt) << (words_.is_chat() ? "\n" : "") << clean_utf8(continuation) << "\n\n";
      return;
    }
    nlohmann::ordered_json row = {{"prompt", tokenizer::replace_invalid_utf8(text.prompt)},
                                  {"text", tokenizer::replace_invalid_utf8(continuation)},
                                  {"ids", text.added},
                                  {"prompt_tokens", text.ids.size()},
                                  {"prompt_tokens_per_s", prompt_tokens_per_s},
                                  {"tokens_per_s", tokens_per_s}};
    if (trained_.step) {
      row["step"] = *trained_.step;
    }
    std::cout << with_escaped_controls(row.dump()) << std::endl;
  }

  const generate::Trained& trained_;
  const GenerateCommand& command_;
  const Words& words_;
  const comm::Group& ranks_;
  bool warned_ = false;
};

// Those of the launcher, if the model is split among ranks.
std::optional<comm::World> world_of(const GenerateCommand& command) {
  if (command.tensor == 1) {
    return std::nullopt;
  }
  comm::World world = comm::World::connect();
  if (world.size() != command.tensor) {
    throw InputError("generate", concat("--tensor is ", command.tensor, ", but ", world.size(), " ranks were started"),
                     concat("Start them with trireme launch -n ", command.tensor, " -- trireme generate."));
  }
  return world;
}

} // namespace

int generate_text(const GenerateCommand& given) {
  GenerateCommand command = given;
  generate::check(command.sample.choice);
  if (std::ranges::find(command.stop, std::string()) != command.stop.end()) {
    throw InputError("generate", "--stop is empty", "Give the text before which the answer ends.");
  }
  if (command.chat && command.prompt.empty() && command.prompts.empty()) {
    throw InputError("generate", "--chat has no message", "Give it as --prompt TEXT, or a file of them as --prompts.");
  }
  const std::optional<comm::World> world = world_of(command);
  const comm::Group ranks = world ? world->group() : comm::Group();
  if (world) {
    check_same_command(command, ranks);
  }
  const std::vector<std::string> prompts = read_prompts(command, ranks);
  const at::Device device = device::choose("auto", world ? world->local_rank() : 0, world ? world->local_size() : 1);
  const bool int8 = command.weights == "int8";
  if (int8 && !device.is_cpu()) {
    throw InputError("generate", concat("--weights int8 is for the CPU, but the model runs on ", device.str()),
                     "Leave it out (--dtype bf16 halves the weights there), or set CUDA_VISIBLE_DEVICES= to use the "
                     "CPU.");
  }
  generate::Trained trained = generate::load(command.from, command.adapter, {.group = ranks});
  const auto prepare = [&] {
    generate::convert_weights(trained.model, command.dtype == "bf16" ? at::kBFloat16 : at::kFloat,
                              int8 ? generate::WeightType::int8 : generate::WeightType::same, ranks);
    device::move(*trained.model.module(), device);
  };
  generate::together(ranks, prepare);
  command.sample.vocab_size = trained.tokenizer ? trained.tokenizer->vocab_size() : 0;
  command.sample.end_tokens = trained.end_tokens;
  std::optional<generate::ChatPrompt> chat;
  if (command.chat) {
    chat.emplace(trained, command.system);
    command.sample.end_tokens = chat->end_tokens();
  }
  const Words words(trained.tokenizer, std::move(chat));
  Batch batch(trained, command, words, ranks);
  for (size_t begin = 0; begin < prompts.size(); begin += static_cast<size_t>(command.batch)) {
    const size_t end = std::min(prompts.size(), begin + static_cast<size_t>(command.batch));
    batch.run(
        {prompts.begin() + static_cast<std::ptrdiff_t>(begin), prompts.begin() + static_cast<std::ptrdiff_t>(end)},
        static_cast<int64_t>(begin));
  }
  return 0;
}

} // namespace trireme::tools
