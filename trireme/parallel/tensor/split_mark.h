#pragma once

#include <trireme/parallel/tensor/ranks.h>
#include <trireme/parallel/tensor/split_rules.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

/// Tensors that are a rank's part of a split parameter carry a mark, which makes libtorch's dispatcher ask us first for
/// every operator that gets one.
///
/// libtorch's modules have no hooks and their forward() is not virtual, so a layer that a program holds by its type
/// cannot be replaced or wrapped; what it does with its weight can. The mark is a dispatch key above autograd and
/// autocast, which work below it as ever, and the rule (a c10::BackendMeta). Tensors without the mark pay nothing.
namespace trireme::tensor {

/// The key of the mark. DeferredInit was kept for a project that is no longer developed (torchdistx); nothing in
/// libtorch uses it.
inline constexpr c10::DispatchKey kSplitKey = c10::DispatchKey::DeferredInit;

/// part_of() in multiples of `grain`, of which the last may be cut short.
Part part_in_grains(int64_t size, int64_t grain, int rank, int ranks);

/// One parameter of the model and how it is split. The same object on all tensors that come from it.
struct SplitParameter {
  std::string name;
  SplitRule::Kind kind = SplitRule::Kind::column;
  Ranks ranks;
  /// Shape of the whole parameter; this rank has `part` of dim `dim`, or of each of the `blocks` that it is made of.
  std::vector<int64_t> whole;
  int64_t dim = 0;
  int64_t grain = 1;
  int64_t blocks = 1;
  Part part;
  /// Of an nn::Embedding, a row of the whole: its gradient stays zero.
  std::optional<int64_t> padding_idx = std::nullopt;

  bool is_bias() const {
    return whole.size() == 1;
  }
};

/// How a marked tensor comes from the parameter.
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

/// Marks a tensor, in place. The mark stays through set_data(), with which modules move to another device or type and
/// flat buffers take parameters in. Cost: nothing but a few operators looked up in a table, once a process.
void set_mark(const at::Tensor& tensor, const Mark& mark);

/// The same values, for autograd the same tensor, without the mark. Call it where kSplitKey is excluded.
at::Tensor without_mark(const at::Tensor& tensor);

/// Makes the dispatcher ask us; set_mark() does it with the first mark (split_operators.cpp).
void register_split_operators();

} // namespace trireme::tensor
