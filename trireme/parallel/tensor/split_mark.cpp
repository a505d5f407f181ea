#include <trireme/parallel/tensor/split_mark.h>

#include <ATen/core/VariableHooksInterface.h>
#include <ATen/ops/alias.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <utility>

namespace trireme::tensor {
namespace {

struct MarkMeta : c10::BackendMeta {
  explicit MarkMeta(Mark mark) : mark(std::move(mark)) {}
  Mark mark;
};

// TensorImpl has no public function to add a key. Derived classes may change its set of keys, and a pointer to that
// member fits any TensorImpl.
struct KeySet : c10::TensorImpl {
  static c10::DispatchKeySet& of(c10::TensorImpl& tensor) { return tensor.*(&KeySet::key_set_); }
};

void add_mark(c10::TensorImpl& tensor, c10::intrusive_ptr<c10::BackendMeta> meta) {
  KeySet::of(tensor) = KeySet::of(tensor).add(kSplitKey);
  tensor.set_backend_meta(std::move(meta));
}

// For kinds of device that libtorch does not list, tensors can only replace each other if their keys are equal: adds
// our key to `tensor`, or removes it.
void make_key_fit(c10::TensorImpl& tensor, bool marked) {
  KeySet::of(tensor) = marked ? KeySet::of(tensor).add(kSplitKey) : KeySet::of(tensor).remove(kSplitKey);
}

using at::TensorBase;

/// A reference to a shared pointer until libtorch 2.12, to an intrusive one since 2.13.
using GradFn =
    decltype(std::declval<const at::impl::VariableHooksInterface&>().grad_fn(std::declval<const TensorBase&>()));

// libtorch's hooks, except that set_data() keeps the mark: libtorch replaces a tensor's keys by those of the data.
class HooksThatKeepMarks : public at::impl::VariableHooksInterface {
 public:
  explicit HooksThatKeepMarks(const at::impl::VariableHooksInterface& next) : next_(next) {}

  void set_data(const TensorBase& self, const TensorBase& data) const override {
    c10::TensorImpl& tensor = *self.unsafeGetTensorImpl();
    const bool marked = tensor.key_set().has(kSplitKey);
    const bool gets_mark = data.key_set().has(kSplitKey); // the copy of a module
    c10::intrusive_ptr<c10::BackendMeta> meta =
        (marked ? self : data).unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
    make_key_fit(tensor, gets_mark);
    try {
      next_.set_data(self, data);
    } catch (...) { // data of another kind: the tensor is unchanged
      make_key_fit(tensor, marked);
      throw;
    }
    if (marked || gets_mark) {
      add_mark(tensor, std::move(meta));
    }
  }

  TensorBase tensor_data(const TensorBase& self) const override { return next_.tensor_data(self); }
  TensorBase variable_data(const TensorBase& self) const override { return next_.variable_data(self); }
  GradFn grad_fn(const TensorBase& self) const override { return next_.grad_fn(self); }
  unsigned _register_hook(const TensorBase& self, std::function<TensorBase(const TensorBase&)> hook) const override {
    return next_._register_hook(self, std::move(hook));
  }
  void remove_hook(const TensorBase& self, unsigned pos) const override { next_.remove_hook(self, pos); }
  bool is_view(const TensorBase& self) const override { return next_.is_view(self); }
  const TensorBase& base(const TensorBase& self) const override { return next_.base(self); }
  const std::string& name(const TensorBase& self) const override { return next_.name(self); }
  bool is_leaf(const TensorBase& self) const override { return next_.is_leaf(self); }
  int64_t output_nr(const TensorBase& self) const override { return next_.output_nr(self); }
  TensorBase data(const TensorBase& self) const override { return next_.data(self); }
  int64_t _version(const TensorBase& self) const override { return next_._version(self); }
  void retain_grad(const TensorBase& self) const override { next_.retain_grad(self); }
  bool retains_grad(const TensorBase& self) const override { return next_.retains_grad(self); }
  void _backward(const at::Tensor& self, at::TensorList inputs, const std::optional<at::Tensor>& gradient,
                 std::optional<bool> keep_graph, bool create_graph) const override {
    next_._backward(self, inputs, gradient, keep_graph, create_graph);
  }
  void requires_grad_(const TensorBase& self, bool requires_grad) const override {
    next_.requires_grad_(self, requires_grad);
  }
  void basic_autograd_not_implemented_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                               torch::jit::Stack* stack) const override {
    next_.basic_autograd_not_implemented_fallback(op, keys, stack);
  }
  std::optional<c10::ScalarType> grad_dtype(const TensorBase& self) const override { return next_.grad_dtype(self); }
  void set_grad_dtype(const TensorBase& self, const std::optional<c10::ScalarType>& type) const override {
    next_.set_grad_dtype(self, type);
  }

 private:
  const at::impl::VariableHooksInterface& next_;
};

void prepare_once() {
  static const bool done = [] {
    register_split_operators();
    // Never deleted: tensors live until the end of the process.
    at::impl::SetVariableHooks(new HooksThatKeepMarks(*at::impl::GetVariableHooks()));
    return true;
  }();
  static_cast<void>(done);
}

} // namespace

RankRange part_in_grains(int64_t size, int64_t grain, int rank, int ranks) {
  const RankRange grains = part_of((size + grain - 1) / grain, rank, ranks);
  return {std::min(size, grains.begin * grain), std::min(size, grains.end * grain)};
}

std::optional<Mark> mark_of(const at::Tensor& tensor) {
  if (!is_marked(tensor)) {
    return std::nullopt;
  }
  const auto* meta = dynamic_cast<const MarkMeta*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  return meta == nullptr ? Mark{nullptr, Form::other} : meta->mark;
}

void set_mark(const at::Tensor& tensor, const Mark& mark) {
  prepare_once();
  add_mark(*tensor.unsafeGetTensorImpl(), c10::make_intrusive<MarkMeta>(mark));
}

at::Tensor without_mark(const at::Tensor& tensor) {
  at::Tensor out = at::alias(tensor);
  c10::TensorImpl& impl = *out.unsafeGetTensorImpl();
  KeySet::of(impl) = KeySet::of(impl).remove(kSplitKey);
  impl.set_backend_meta(nullptr);
  return out;
}

} // namespace trireme::tensor
