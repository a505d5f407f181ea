#include <trireme/generate/sample.h>

#include <trireme/base/error.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <algorithm>

namespace trireme::generate {

std::vector<int32_t> sample(const models::LanguageModel& model, std::vector<int32_t> prompt,
                            const SampleOptions& options) {
  const torch::NoGradGuard no_grad;
  const models::TransformerShape shape = model.shape();
  if (prompt.empty()) {
    prompt.push_back(0);
  }
  for (const int32_t token : prompt) {
    if (token < 0 || token >= shape.vocab_size) {
      throw InputError(
          "generate",
          concat("the prompt has token ", token, ", but the model's tokens are 0 to ", shape.vocab_size - 1),
          "Was the model trained with another tokenizer?");
    }
  }
  const int64_t ids =
      options.vocab_size > 0 ? std::min(options.vocab_size, shape.vocab_size) : shape.vocab_size; // to choose from
  const at::Device device = model.module()->parameters().front().device();
  const bool was_training = model.module()->is_training();
  model.module()->eval();
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(options.seed));
  for (int64_t i = 0; i < options.tokens; ++i) {
    const auto length = std::min<int64_t>(static_cast<int64_t>(prompt.size()), shape.sequence_length);
    const std::vector<int64_t> window(prompt.end() - length, prompt.end());
    at::Tensor logits = model.forward(torch::tensor(window, torch::kInt64).unsqueeze(0).to(device))
                            .select(1, length - 1)
                            .squeeze(0)
                            .narrow(0, 0, ids)
                            .cpu();
    if (options.temperature <= 0) {
      prompt.push_back(static_cast<int32_t>(logits.argmax().item<int64_t>()));
      continue;
    }
    logits = logits / options.temperature;
    if (options.top_k > 0 && options.top_k < ids) {
      const at::Tensor least = std::get<0>(logits.topk(options.top_k)).min();
      logits = logits.masked_fill(logits < least, -INFINITY);
    }
    prompt.push_back(
        static_cast<int32_t>(at::multinomial(at::softmax(logits, 0), 1, false, generator).item<int64_t>()));
  }
  model.module()->train(was_training);
  return prompt;
}

} // namespace trireme::generate
