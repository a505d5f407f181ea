#include "tokenize_data.h"

#include <trireme/base/cores.h>
#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/data/tokenize/ending_signals.h>
#include <trireme/data/tokenize/tokenize.h>
#include <trireme/monitor/terminal.h>

#include <nlohmann/json.hpp>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

namespace trireme::tools {
namespace {

using Clock = std::chrono::steady_clock;

// One line, drawn again a few times a second.
class TokenizeLine {
 public:
  void show(const data::TokenizeProgress& progress) {
    const Clock::time_point now = Clock::now();
    if (now - shown_ < std::chrono::milliseconds(200)) {
      return;
    }
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const auto read = static_cast<double>(progress.bytes_read);
    const double share = read / static_cast<double>(std::max<int64_t>(progress.bytes_total, 1));
    std::fprintf(stderr, "\r\033[K%3.0f %%  %s tokens  %s documents  %s left", 100 * share,
                 format_count(progress.tokens).c_str(), format_count(progress.documents).c_str(),
                 format_seconds(seconds * (1 - share) / std::max(share, 1e-9)).c_str());
    std::fflush(stderr);
    drawn_ = true;
  }
  ~TokenizeLine() {
    if (drawn_) {
      std::fputs("\r\033[K", stderr);
    }
  }

 private:
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;
  bool drawn_ = false;
};

// Calls f(stop). If a signal has ended it, so that nothing half is left, the process ends by that signal.
template <class F>
data::TokenizeResult end_by_signal(const F& f) {
  try {
    const data::EndingSignals signals({SIGINT, SIGTERM, SIGHUP});
    return f([] { return data::EndingSignals::asked() != 0; });
  } catch (const Error&) {
    if (data::EndingSignals::asked() != 0) {
      ::raise(data::EndingSignals::asked());
    }
    throw;
  }
}

double megabytes_per_second(const data::TokenizeResult& result) {
  return static_cast<double>(result.index.text_bytes) / 1e6 / std::max(result.seconds, 1e-9);
}

data::LineFields fields_of(const std::string& name) {
  using enum data::LineFields;
  return name == "text" ? text : name == "prompt" ? prompt : name == "messages" ? messages : any;
}

nlohmann::ordered_json as_json(const data::TokenizeResult& result) {
  const data::ShardIndex& index = result.index;
  nlohmann::ordered_json json = {{"folder", result.folder.string()},
                                 {"documents", index.documents},
                                 {"empty_documents", result.empty_documents},
                                 {"tokens", index.tokens},
                                 {"counted_tokens", index.counted_tokens.value_or(index.tokens)},
                                 {"token_bytes", index.token_bytes},
                                 {"vocab_size", index.vocab_size},
                                 {"end_token", nullptr},
                                 {"text_bytes", index.text_bytes},
                                 {"shards", index.shards.size()},
                                 {"seconds", result.seconds},
                                 {"mb_per_s", megabytes_per_second(result)}};
  if (index.end_token) {
    json["end_token"] = {{"text", index.end_token->text}, {"id", index.end_token->id}};
  }
  return json;
}

void print_result(const data::TokenizeResult& result, const DataTokenizeCommand& command) {
  const data::ShardIndex& index = result.index;
  char speed[32];
  std::snprintf(speed, sizeof speed, "%.1f MB/s", megabytes_per_second(result));
  log::info(index.documents, index.documents == 1 ? " document, " : " documents, ", format_count(index.tokens),
            " tokens of ", 8 * index.token_bytes, " bits, ", format_bytes(index.text_bytes), " of text in ",
            format_seconds(result.seconds), " (", speed, ")");
  if (index.counted_tokens) {
    log::info(format_count(*index.counted_tokens), " of the tokens count in the loss, ",
              data::percent_of(*index.counted_tokens, index.tokens));
  }
  if (result.empty_documents > 0) {
    log::info(result.empty_documents, result.empty_documents == 1 ? " document" : " documents",
              " without a token left out");
  }
  if (index.end_token) {
    log::info("behind each document: ", printable(index.end_token->text), " (", index.end_token->id, ')');
  } else {
    log::info("nothing between documents",
              command.end_token.empty() ? ": the tokenizer's files name no end token (--end-token TEXT adds one)" : "");
  }
  log::info(index.shards.size(), index.shards.size() == 1 ? " shard in " : " shards in ", result.folder.string(),
            R"(; a run reads them with "data": {"type": "tokens", "train": ")", result.folder.string(), R"("})");
}

} // namespace

int tokenize_data(const DataTokenizeCommand& command) {
  data::TokenizeOptions options{
      .inputs = command.inputs,
      .tokenizer = command.tokenizer,
      .out = command.out,
      .shard_tokens = command.shard_tokens,
      .threads = command.threads > 0 ? static_cast<int>(command.threads) : usable_cores(),
      .lines = {.keys = {fields_of(command.fields), command.text_key},
                .loss_on = command.loss_on == "all" ? data::LossOn::all : data::LossOn::response,
                .chat_template = command.chat_template}};
  if (!command.end_token.empty()) {
    options.end_token = command.end_token;
  }
  options.force = command.force;
  const data::TokenizeResult result = end_by_signal([&](const data::Stop& stop) {
    TokenizeLine line;
    options.stop = stop;
    if (monitor::stderr_terminal().live) {
      options.progress = [&](const data::TokenizeProgress& progress) { line.show(progress); };
    }
    return data::tokenize_files(options);
  });
  if (result.index.counted_tokens == 0) {
    log::warning(
        "none of the tokens counts in the loss, so a run on them is refused: only what the role \"assistant\" "
        "says and a prompt's response do; look at the roles, or use --loss-on all");
  }
  if (command.json) {
    std::cout << as_json(result).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  } else {
    print_result(result, command);
  }
  return 0;
}

} // namespace trireme::tools
