#include <trireme/models/documents.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>

namespace trireme::models {

std::vector<int64_t> document_lengths(const at::Tensor& positions_BT) {
  const at::Tensor places = positions_BT.to(at::kCPU).contiguous();
  const auto* position = places.const_data_ptr<int64_t>();
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < places.size(0); ++row) {
    for (int64_t i = 0; i < places.size(1); ++i, ++position) {
      if (i == 0 || *position == 0) {
        lengths.push_back(0);
      }
      ++lengths.back();
    }
  }
  return lengths;
}

void check_documents(const char* model, const at::Tensor& tokens_BT, const at::Tensor& positions_BT,
                     const ModelRanks& ranks) {
  if (ranks.shares_tokens()) {
    throw InputError(model, "context ranks split the tokens of packed documents",
                     "Use one context rank, or do not pack documents.");
  }
  if (positions_BT.scalar_type() != at::kLong || positions_BT.sizes() != tokens_BT.sizes()) {
    throw InputError(model, concat("positions must be int64 ", tokens_BT.sizes(), " as the tokens, got ",
                                   positions_BT.scalar_type(), ' ', positions_BT.sizes()));
  }
}

} // namespace trireme::models
