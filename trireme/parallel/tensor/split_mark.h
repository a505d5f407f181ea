#pragma once

#include <trireme/parallel/tensor/ranks.h>
#include <trireme/parallel/tensor/split_rules.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

/// Marks tensors that are a rank's part of a split parameter, so that libtorch's dispatcher calls our function for
/// every operator that gets one.
///
/// libtorch's modules have no hooks and their forward() is not virtual, so a layer that a program holds by its type
/// cannot be replaced or wrapped; the operators on its weight can. The mark is a dispatch key above autograd and
/// autocast, which work unchanged, and the rule (a c10::BackendMeta). Unmarked tensors have no cost.
namespace trireme::tensor {

/// The key of the mark. DeferredInit was reserved for a discontinued project (torchdistx); nothing in libtorch uses
/// it.
inline constexpr c10::DispatchKey kSplitKey = c10::DispatchKey::DeferredInit;

/// part_of() in multiples of `grain`; the last multiple may be incomplete.
RankRange part_in_grains(int64_t size, int64_t grain, int rank, int ranks);

/// One parameter of the model and how it is split. All tensors made from it share this object.
struct SplitParameter {
  std::string name;
  SplitRule::Kind kind = SplitRule::Kind::column;
  Ranks ranks;
  /// Shape of the full parameter; this rank has `part` of dim `dim`, or of each of its `blocks`.
  std::vector<int64_t> whole;
  int64_t dim = 0;
  int64_t grain = 1;
  int64_t blocks = 1;
  RankRange part;
  /// nn::Embedding: a row of the full weight whose gradient stays zero.
  std::optional<int64_t> padding_idx = std::nullopt;

  bool is_bias() const { return whole.size() == 1; }
};

/// How a marked tensor is derived from the parameter.
enum class Form {
  same,       ///< its shape, possibly another type or other values
  transposed, ///< [in, out]
  other       ///< a view of another shape: no product with it is understood
};

struct Mark {
  std::shared_ptr<const SplitParameter> parameter;
  Form form = Form::same;
};

/// The mark of a tensor, if it has one.
std::optional<Mark> mark_of(const at::Tensor& tensor);
inline bool is_marked(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(kSplitKey);
}

/// Marks a tensor in place. The mark survives set_data(), which modules use to change device or type and flat buffers
/// to take parameters in. Cost: a few operators looked up in a table, once per process.
void set_mark(const at::Tensor& tensor, const Mark& mark);

/// The same values without the mark; for autograd the same tensor. Call it with kSplitKey excluded.
at::Tensor without_mark(const at::Tensor& tensor);

/// Registers our operators with the dispatcher; set_mark() calls it for the first mark (split_operators.cpp).
void register_split_operators();

} // namespace trireme::tensor
