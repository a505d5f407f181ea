#include <trireme/models/language_head.h>

namespace trireme::models {

at::Tensor LanguageHead::logits(const at::Tensor& x_BTH) const {
  return linear.is_empty() ? embedding->use([&] { return embedding->logits(x_BTH); }) : linear->forward(x_BTH);
}

at::Tensor LanguageHead::loss(const at::Tensor& x_BTH, const at::Tensor& targets_BT) const {
  const bool ties = linear.is_empty();
  const at::Tensor& weight = ties ? embedding->weight : linear->weight;
  const bool only_whole = !ties && (linear->present() || linear->fp8() != nullptr);
  if (only_whole || !takes_chunks(x_BTH, weight, targets_BT, vocabulary, ranks)) {
    return split_token_loss(logits(x_BTH), targets_BT, vocabulary, ranks);
  }
  const auto loss_of = [&] { return head_loss(x_BTH, weight, targets_BT, vocabulary, ranks); };
  return ties ? embedding->use(loss_of) : linear->use(loss_of);
}

} // namespace trireme::models
