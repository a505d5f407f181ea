#include <trireme/generate/choose_token.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>

#include <cmath>
#include <string>

namespace trireme::generate {
namespace {

// Keeps the most likely tokens up to the one with which their probabilities reach `share`.
at::Tensor keep_nucleus(const at::Tensor& logits, double share) {
  const auto [sorted, order] = logits.sort(/*dim=*/-1, /*descending=*/true);
  const at::Tensor probabilities = at::softmax(sorted, -1);
  const at::Tensor before = probabilities.cumsum(-1) - probabilities;
  return at::full_like(logits, -INFINITY).scatter_(0, order, sorted.masked_fill(before >= share, -INFINITY));
}

// Below, logits divided by it leave the range of fp32, and long before that all but the largest have probability 0.
bool takes_most_likely(const Choice& choice) {
  constexpr double kLeast = 1e-30;
  return choice.temperature < kLeast;
}

} // namespace

void check(const Choice& choice) {
  const auto refuse = [](const char* name, double value, const char* range) {
    throw InputError("generate", concat(name, " is ", value), concat("It must be ", range, '.'));
  };
  if (!(choice.temperature >= 0) || std::isinf(choice.temperature)) {
    refuse("temperature", choice.temperature, "0 or more");
  }
  if (choice.top_k < 0) {
    refuse("top_k", static_cast<double>(choice.top_k), "0 or more");
  }
  if (!(choice.top_p > 0 && choice.top_p <= 1)) {
    refuse("top_p", choice.top_p, "above 0 and at most 1");
  }
  if (!(choice.min_p >= 0 && choice.min_p <= 1)) {
    refuse("min_p", choice.min_p, "from 0 to 1");
  }
  if (!(choice.repetition_penalty > 0) || std::isinf(choice.repetition_penalty)) {
    refuse("repetition_penalty", choice.repetition_penalty, "above 0");
  }
}

at::Tensor choice_logits(const at::Tensor& given, std::span<const int32_t> text, const Choice& choice) {
  at::Tensor logits = given;
  if (choice.repetition_penalty != 1 && !text.empty()) {
    const at::Tensor all =
        at::from_blob(const_cast<int32_t*>(text.data()), {static_cast<int64_t>(text.size())}, at::kInt).to(at::kLong);
    const at::Tensor seen = all.index({all < logits.size(0)}); // a prompt may have tokens that are never chosen
    const at::Tensor theirs = logits.index_select(0, seen);
    logits = logits.clone().index_copy_(
        0, seen, at::where(theirs < 0, theirs * choice.repetition_penalty, theirs / choice.repetition_penalty));
  }
  if (takes_most_likely(choice)) {
    return logits;
  }
  logits = logits / choice.temperature;
  if (choice.top_k > 0 && choice.top_k < logits.size(0)) {
    const at::Tensor least = std::get<0>(logits.topk(choice.top_k)).min();
    logits = logits.masked_fill(logits < least, -INFINITY);
  }
  if (choice.top_p < 1) {
    logits = keep_nucleus(logits, choice.top_p);
  }
  if (choice.min_p > 0) {
    const at::Tensor probabilities = at::softmax(logits, 0);
    logits = logits.masked_fill(probabilities < probabilities.max() * choice.min_p, -INFINITY);
  }
  return logits;
}

int32_t choose_token(const at::Tensor& logits, std::span<const int32_t> text, const Choice& choice,
                     at::Generator& generator) {
  const at::Tensor left = choice_logits(logits, text, choice);
  if (takes_most_likely(choice)) {
    return static_cast<int32_t>(left.argmax().item<int64_t>());
  }
  return static_cast<int32_t>(at::multinomial(at::softmax(left, 0), 1, false, generator).item<int64_t>());
}

} // namespace trireme::generate
