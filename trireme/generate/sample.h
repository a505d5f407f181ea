#pragma once

#include <trireme/comm/group.h>
#include <trireme/generate/options.h>
#include <trireme/models/language_model.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::generate {

/// Errors: InputError for a token outside the vocabulary.
void check_prompt(const models::LanguageModel& model, const std::vector<int32_t>& prompt);

/// Called for each new token. Returns whether the text ends with it.
using OnToken = std::function<bool(size_t prompt, int32_t token)>;

/// The continuations of several prompts, each with the end token that it has. An empty prompt starts from token 0,
/// which its continuation does not have.
///
/// All prompts are read at once (attention pads them to the longest), then one token of each at a time, with a cache of
/// keys and values (KeyValueCache). Beyond the model's positions the last of them are read again for each token. Cost:
/// one pass over the prompts, then one over the weights per token of all prompts. Errors: as check_prompt(), and
/// InputError for options outside their range. The model evaluates meanwhile, and each of its modules is as it was
/// afterwards, even if `on_token` throws.
///
/// `ranks`: those that split the model (generate::load()). All of them call this with the same prompts and options, and
/// get the same texts. Rank 0 chooses the tokens and alone calls `on_token`. Cost: a broadcast of 16 bytes a prompt for
/// each token, beside the model's own exchanges. Errors: PeerError on the others if rank 0 throws, or a rank is lost.
std::vector<std::vector<int32_t>> continue_prompts(const models::LanguageModel& model,
                                                   std::vector<std::vector<int32_t>> prompts,
                                                   const SampleOptions& options, const OnToken& on_token = {},
                                                   const comm::Group& ranks = {});

/// One prompt, and its continuation after it.
std::vector<int32_t> sample(const models::LanguageModel& model, std::vector<int32_t> prompt,
                            const SampleOptions& options);

} // namespace trireme::generate
