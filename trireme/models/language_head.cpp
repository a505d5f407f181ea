#include <trireme/models/language_head.h>

namespace trireme::models {
namespace {

bool is_plain(const tensor::ColumnParallelLinearImpl& linear) {
  return !linear.present() && linear.fp8() == nullptr;
}

} // namespace

at::Tensor last_layer_loss(tensor::VocabParallelEmbeddingImpl& tied, const at::Tensor& x_BTH,
                           const at::Tensor& targets_BT, int64_t vocabulary, const ModelRanks& ranks) {
  return takes_chunks(x_BTH, tied.weight, targets_BT, vocabulary, ranks)
             ? head_loss(x_BTH, tied.weight, targets_BT, vocabulary, ranks)
             : split_token_loss(tied.logits(x_BTH), targets_BT, vocabulary, ranks);
}

at::Tensor last_layer_loss(tensor::ColumnParallelLinearImpl& linear, const at::Tensor& x_BTH,
                           const at::Tensor& targets_BT, int64_t vocabulary, const ModelRanks& ranks) {
  return is_plain(linear) && takes_chunks(x_BTH, linear.weight, targets_BT, vocabulary, ranks)
             ? head_loss(x_BTH, linear.weight, targets_BT, vocabulary, ranks)
             : split_token_loss(linear.forward(x_BTH), targets_BT, vocabulary, ranks);
}

at::Tensor LanguageHead::logits(const at::Tensor& x_BTH) const {
  return linear.is_empty() ? embedding->use([&] { return embedding->logits(x_BTH); }) : linear->forward(x_BTH);
}

at::Tensor LanguageHead::loss(const at::Tensor& x_BTH, const at::Tensor& targets_BT) const {
  if (linear.is_empty()) {
    return embedding->use([&] { return last_layer_loss(*embedding, x_BTH, targets_BT, vocabulary, ranks); });
  }
  if (!is_plain(*linear) || !takes_chunks(x_BTH, linear->weight, targets_BT, vocabulary, ranks)) {
    return split_token_loss(linear->forward(x_BTH), targets_BT, vocabulary, ranks); // its activations may be moved
  }
  return linear->use([&] { return last_layer_loss(*linear, x_BTH, targets_BT, vocabulary, ranks); });
}

} // namespace trireme::models
