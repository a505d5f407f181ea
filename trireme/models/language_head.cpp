#include <trireme/models/language_head.h>

namespace trireme::models {
namespace {

bool takes_chunks(const tensor::ColumnParallelLinearImpl& linear, const at::Tensor& x_BTH, const at::Tensor& targets_BT,
                  int64_t vocabulary, const ModelRanks& ranks) {
  return !linear.present() && linear.fp8() == nullptr &&
         takes_chunks(x_BTH, linear.weight, targets_BT, vocabulary, ranks);
}

} // namespace

at::Tensor loss_in_chunks(const tensor::VocabParallelEmbeddingImpl& tied, const at::Tensor& x_BTH,
                          const at::Tensor& targets_BT, int64_t vocabulary, const ModelRanks& ranks) {
  return takes_chunks(x_BTH, tied.weight, targets_BT, vocabulary, ranks)
             ? head_loss(x_BTH, tied.weight, targets_BT, vocabulary, ranks)
             : at::Tensor();
}

at::Tensor loss_in_chunks(const tensor::ColumnParallelLinearImpl& linear, const at::Tensor& x_BTH,
                          const at::Tensor& targets_BT, int64_t vocabulary, const ModelRanks& ranks) {
  return takes_chunks(linear, x_BTH, targets_BT, vocabulary, ranks)
             ? head_loss(x_BTH, linear.weight, targets_BT, vocabulary, ranks)
             : at::Tensor();
}

at::Tensor LanguageHead::logits(const at::Tensor& x_BTH) const {
  return linear.is_empty() ? embedding->use([&] { return embedding->logits(x_BTH); }) : linear->forward(x_BTH);
}

at::Tensor LanguageHead::loss(const at::Tensor& x_BTH, const at::Tensor& targets_BT) const {
  const bool ties = linear.is_empty();
  const bool in_chunks = ties ? takes_chunks(x_BTH, embedding->weight, targets_BT, vocabulary, ranks)
                              : takes_chunks(*linear, x_BTH, targets_BT, vocabulary, ranks);
  if (!in_chunks) {
    return split_token_loss(logits(x_BTH), targets_BT, vocabulary, ranks);
  }
  return ties ? embedding->use([&] { return loss_in_chunks(*embedding, x_BTH, targets_BT, vocabulary, ranks); })
              : linear->use([&] { return loss_in_chunks(*linear, x_BTH, targets_BT, vocabulary, ranks); });
}

} // namespace trireme::models
