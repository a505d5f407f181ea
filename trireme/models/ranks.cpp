#include <trireme/models/ranks.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>

namespace trireme::models {

int64_t heads_of_rank(const char* model, int64_t heads, const ModelRanks& ranks) {
  if (heads % ranks.tensor.group.size() != 0) {
    throw InputError(model, concat("the ", ranks.tensor.group.size(), " tensor-parallel ranks must divide the ", heads, " heads"),
                     "Choose parallel.tensor so that it divides model.heads.");
  }
  return heads / ranks.tensor.group.size();
}

at::Tensor add_positions(const char* model, const at::Tensor& x_BTH, const at::Tensor& positions, const ModelRanks& ranks) {
  const int64_t tokens = x_BTH.size(1);
  const int64_t parts = ranks.tensor.splits_sequence() ? ranks.tensor.group.size() : 1;
  if (tokens * parts > positions.size(0)) {
    throw InputError(model, concat("a sequence of ", tokens * parts, " tokens was given to a model of sequence_length ", positions.size(0)));
  }
  const int64_t begin = parts > 1 ? ranks.tensor.group.rank() * tokens : 0;
  return x_BTH + positions.slice(0, begin, begin + tokens);
}

} // namespace trireme::models
