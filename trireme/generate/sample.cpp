#include <trireme/generate/sample.h>

#include <trireme/base/error.h>
#include <trireme/engine/evaluation_mode.h>
#include <trireme/generate/choose_token.h>
#include <trireme/models/key_value_cache.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <random>
#include <span>
#include <utility>

namespace trireme::generate {
namespace {

using Ids = std::vector<int32_t>;

// Begins as torch.manual_seed(seed) does, which takes the low 32 bits, and with all 64 bits where the others are not 0.
at::Generator generator_of(uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  if (const auto high = static_cast<uint32_t>(seed >> 32); high != 0) {
    std::seed_seq words{static_cast<uint32_t>(seed), high};
    at::mt19937_data_pod state{seed, /*left_=*/1, /*seeded_=*/true, /*next_=*/0, {}};
    words.generate(state.state_.begin(), state.state_.end());
    at::mt19937 engine;
    engine.set_data(state);
    at::check_generator<at::CPUGeneratorImpl>(generator)->set_engine(engine);
  }
  return generator;
}

// The texts of all prompts, and which of them still grow.
class Texts {
 public:
  Texts(const models::LanguageModel& model, std::vector<Ids> prompts, const SampleOptions& options,
        const OnToken& on_token, const comm::Group& ranks)
      : model_(model),
        options_(options),
        on_token_(on_token),
        ranks_(ranks),
        texts_(std::move(prompts)),
        device_(model.module()->parameters().front().device()),
        cache_(static_cast<int64_t>(texts_.size()), capacity()) {
    for (size_t i = 0; i < texts_.size(); ++i) {
      prompt_sizes_.push_back(texts_[i].size());
      generators_.push_back(generator_of(static_cast<uint64_t>(options.seed) + i));
    }
    ended_.resize(texts_.size());
  }

  std::vector<Ids> grow() {
    for (int64_t i = 0; i < options_.tokens && std::ranges::find(ended_, false) != ended_.end(); ++i) {
      const bool reads_all = i == 0 || std::ranges::find(cache_.lengths(), cache_.capacity()) != cache_.lengths().end();
      choose(reads_all ? read_texts() : read_last());
    }
    std::vector<Ids> added;
    for (size_t i = 0; i < texts_.size(); ++i) {
      added.emplace_back(texts_[i].begin() + static_cast<std::ptrdiff_t>(prompt_sizes_[i]), texts_[i].end());
    }
    return added;
  }

 private:
  int64_t capacity() const {
    size_t longest = 0;
    for (const Ids& text : texts_) {
      longest = std::max(longest, text.size());
    }
    return std::min(static_cast<int64_t>(longest) + options_.tokens, model_.most_tokens());
  }

  // Logits [B, V] after the last tokens of the texts that fit into the cache.
  at::Tensor read_texts() {
    std::vector<int64_t> lengths;
    for (size_t i = 0; i < texts_.size(); ++i) { // an ended one takes no room
      lengths.push_back(ended_[i] ? 1 : std::min(static_cast<int64_t>(texts_[i].size()), cache_.capacity()));
    }
    cache_.begin(lengths);
    const at::Tensor tokens = at::zeros({cache_.rows(), cache_.reach()}, at::kLong);
    for (size_t i = 0; i < texts_.size(); ++i) {
      std::copy(texts_[i].end() - lengths[i], texts_[i].end(),
                tokens[static_cast<int64_t>(i)].mutable_data_ptr<int64_t>());
    }
    return model_.extend(tokens.to(device_), cache_);
  }

  at::Tensor read_last() {
    cache_.next();
    const at::Tensor tokens = at::empty({cache_.rows(), 1}, at::kLong);
    for (size_t i = 0; i < texts_.size(); ++i) {
      tokens.mutable_data_ptr<int64_t>()[i] = texts_[i].back();
    }
    return model_.extend(tokens.to(device_), cache_);
  }

  void choose(const at::Tensor& all_logits) {
    const at::Tensor chosen = at::zeros({std::ssize(texts_), 2}, at::kLong); // a token, and what follows
    std::exception_ptr failed;
    if (ranks_.rank() == 0) {
      try {
        choose_here(all_logits, chosen);
      } catch (...) {
        failed = std::current_exception();
        chosen.fill_(kFailed);
      }
    }
    if (ranks_.size() > 1) {
      ranks_.broadcast(chosen, 0, "chosen tokens").wait();
    }
    if (failed) {
      std::rethrow_exception(failed);
    }
    for (size_t i = 0; i < texts_.size(); ++i) {
      const int64_t* const row = chosen.const_data_ptr<int64_t>() + 2 * i;
      if (row[1] == kFailed) {
        throw PeerError("generate", "rank 0 failed while it chose the next tokens", "Its own message says why.");
      }
      if (!ended_[i]) {
        texts_[i].push_back(static_cast<int32_t>(row[0]));
        ended_[i] = row[1] == kEnds;
      }
    }
  }

  // Fills the rows of texts that still grow.
  void choose_here(const at::Tensor& all_logits, const at::Tensor& chosen) {
    const int64_t size =
        options_.vocab_size > 0 ? std::min(options_.vocab_size, all_logits.size(1)) : all_logits.size(1);
    const at::Tensor logits = all_logits.narrow(1, 0, size).to(at::kCPU, at::kFloat);
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (ended_[i]) {
        continue;
      }
      const int32_t token = choose_token(logits[static_cast<int64_t>(i)], texts_[i], options_.choice, generators_[i]);
      const bool is_end = std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end();
      int64_t* const row = chosen.mutable_data_ptr<int64_t>() + 2 * i;
      row[0] = token;
      row[1] = (on_token_ && on_token_(i, token)) || is_end ? kEnds : kGoesOn;
    }
  }

  static constexpr int64_t kGoesOn = 0, kEnds = 1, kFailed = -1;

  const models::LanguageModel& model_;
  const SampleOptions& options_;
  const OnToken& on_token_;
  const comm::Group& ranks_;
  std::vector<Ids> texts_;
  std::vector<size_t> prompt_sizes_;
  std::vector<at::Generator> generators_;
  std::vector<bool> ended_;
  at::Device device_;
  models::KeyValueCache cache_;
};

} // namespace

void check_prompt(const models::LanguageModel& model, const Ids& prompt) {
  const int64_t vocab_size = model.shape().vocab_size;
  for (const int32_t token : prompt) {
    if (token < 0 || token >= vocab_size) {
      throw InputError("generate",
                       concat("the prompt has token ", token, ", but the model's tokens are 0 to ", vocab_size - 1),
                       "Was the model trained with another tokenizer?");
    }
  }
}

std::vector<Ids> continue_prompts(const models::LanguageModel& model, std::vector<Ids> prompts,
                                  const SampleOptions& options, const OnToken& on_token, const comm::Group& ranks) {
  const c10::InferenceMode inference; // fused::linear() is faster then
  check(options.choice);
  for (Ids& prompt : prompts) {
    check_prompt(model, prompt);
    if (prompt.empty()) {
      prompt.push_back(0);
    }
  }
  if (prompts.empty() || options.tokens <= 0) {
    return std::vector<Ids>(prompts.size());
  }
  const engine::EvaluationMode evaluating(*model.module());
  return Texts(model, std::move(prompts), options, on_token, ranks).grow();
}

Ids sample(const models::LanguageModel& model, Ids prompt, const SampleOptions& options) {
  if (prompt.empty()) {
    prompt.push_back(0);
  }
  const Ids added = continue_prompts(model, {prompt}, options).front();
  prompt.insert(prompt.end(), added.begin(), added.end());
  return prompt;
}

} // namespace trireme::generate
