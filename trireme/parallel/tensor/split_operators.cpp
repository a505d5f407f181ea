#include <trireme/parallel/tensor/split_mark.h>

#include <trireme/base/error.h>
#include <trireme/parallel/tensor/exchange.h>

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

// Operators on split parameters. A few are layers: they run with the exchanges of Shoeybi et al. 2019. Others may act
// on this rank's part alone, and their result is split the same way: views, copies, element by element, in place. All
// others throw an error that names them, because their result on a part is not a part of the result.
namespace trireme::tensor {
namespace {

using Kind = SplitRule::Kind;
using OptionalTensor = std::optional<at::Tensor>;

std::string name_of(const Mark& mark) {
  return mark.parameter ? mark.parameter->name : "a split parameter";
}

std::string what_is(const SplitParameter& p) {
  return concat(p.name, ", split over ", p.ranks.group.size(), " ranks (", kind_name(p.kind), ')');
}

[[noreturn]] void refuse(std::string_view op, const Mark& mark) {
  throw InputError(kPart,
                   concat("the operator ", op, " got ", mark.form == Form::other ? "a view of another shape of " : "",
                          mark.parameter ? what_is(*mark.parameter) : name_of(mark),
                          ": its result on one rank's part is not a part of the full result"),
                   "Supported: layers, torch::linear(), x.matmul(weight.t()), torch::embedding() and what acts "
                   "element by element. Otherwise do not split the parameter: put a rule of kind skip in "
                   "front of the others.");
}

using Multiply =
    c10::function_ref<at::Tensor(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias)>;

// A column-split layer's part of the bias.
OptionalTensor bias_part(const SplitParameter& p, const OptionalTensor& bias) {
  if (!bias || !bias->defined()) {
    return std::nullopt;
  }
  const std::optional<Mark> mark = mark_of(*bias);
  if (!mark || !mark->parameter || !mark->parameter->is_bias() || mark->parameter->whole[0] != p.whole[0] ||
      mark->parameter->part.begin != p.part.begin) {
    throw InputError(kPart, concat("the bias that is added with ", what_is(p), " is not split like it"),
                     "A module's \"bias\" is split with its \"weight\"; give a bias of another name its own rule.");
  }
  return without_mark(*bias);
}

void check_features(const SplitParameter& p, const at::Tensor& x, int64_t features) {
  if (x.dim() == 0 || x.size(-1) == features) {
    return;
  }
  if (p.kind == Kind::row) {
    throw InputError(kPart,
                     concat(what_is(p), ", takes ", features, " of ", p.whole[1], " features on rank ",
                            p.ranks.group.rank(), " but got an input of sizes ", x.sizes()),
                     "The layer before it must be split by columns, with an output that is not gathered; a number of "
                     "heads or features that the model counts "
                     "itself must be this rank's.");
  }
  throw InputError(
      kPart, concat(what_is(p), ", takes all ", features, " features but got an input of sizes ", x.sizes()),
      "If the layer before it is split by columns too, split this one by rows, or gather that one's output.");
}

// x times a weight [out, in], or its transpose, by `form`; `multiply` computes it with this rank's part.
at::Tensor product(std::string_view op, const at::Tensor& x, const at::Tensor& weight, Form form,
                   const OptionalTensor& bias, Multiply multiply) {
  for (const at::Tensor& other : {x, bias && !is_marked(weight) ? *bias : at::Tensor()}) {
    if (is_marked(other)) {
      refuse(op, *mark_of(other));
    }
  }
  const Mark mark = mark_of(weight).value();
  if (!mark.parameter || mark.form != form || mark.parameter->is_bias()) {
    refuse(op, mark);
  }
  const SplitParameter& p = *mark.parameter;
  check_features(p, x, weight.size(form == Form::same ? 1 : 0));
  const c10::impl::ExcludeDispatchKeyGuard below(kSplitKey);
  const at::Tensor part = without_mark(weight);
  if (p.kind == Kind::column) {
    return multiply(copy_to_ranks(x, p.ranks.group), part, bias_part(p, bias));
  }
  const bool row = p.kind == Kind::row;
  const at::Tensor own = multiply(row ? x : copy_to_ranks(x, p.ranks.group), part, std::nullopt);
  const at::Tensor y = row ? sum_over_ranks(own, p.ranks.group) : join_last_dim(own, p.whole[0], p.ranks);
  return bias && bias->defined() ? y + bias->to(y.scalar_type()) : y;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias) {
  return product("aten::linear", x, weight, Form::same, bias,
                 [](const at::Tensor& a, const at::Tensor& w, const OptionalTensor& b) { return at::linear(a, w, b); });
}

at::Tensor matmul(const at::Tensor& x, const at::Tensor& weight) {
  return product("aten::matmul", x, weight, Form::transposed, {},
                 [](const at::Tensor& a, const at::Tensor& w, const OptionalTensor&) { return at::matmul(a, w); });
}

at::Tensor mm(const at::Tensor& x, const at::Tensor& weight) {
  return product("aten::mm", x, weight, Form::transposed, {},
                 [](const at::Tensor& a, const at::Tensor& w, const OptionalTensor&) { return at::mm(a, w); });
}

at::Tensor addmm(const at::Tensor& bias, const at::Tensor& x, const at::Tensor& weight, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  const bool scaled = !beta.equal(1) || !alpha.equal(1);
  const std::optional<Mark> mark = mark_of(scaled ? bias : weight);
  if (scaled) { // the layers' forms have no factors
    refuse("aten::addmm with beta or alpha", mark.value_or(mark_of(weight).value_or(Mark{nullptr, Form::same})));
  }
  return product("aten::addmm", x, weight, Form::transposed, bias,
                 [](const at::Tensor& a, const at::Tensor& w, const OptionalTensor& b) {
                   return b ? at::addmm(*b, a, w) : at::mm(a, w);
                 });
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids, c10::SymInt padding_idx, bool scale_grad_by_freq,
                     bool sparse) {
  constexpr std::string_view op = "aten::embedding";
  const std::optional<Mark> mark = mark_of(weight);
  if (!mark || !mark->parameter || mark->form != Form::same || mark->parameter->dim != 0 ||
      mark->parameter->is_bias()) {
    refuse(op, mark.value_or(Mark{nullptr, Form::same}));
  }
  const SplitParameter& p = *mark->parameter;
  if (padding_idx >= 0 || scale_grad_by_freq) {
    refuse(
        concat(op, scale_grad_by_freq ? " with scale_grad_by_freq" : " with padding_idx, not from an nn::Embedding,"),
        *mark);
  }
  const c10::impl::ExcludeDispatchKeyGuard below(kSplitKey);
  const at::Tensor elsewhere = ids.lt(p.part.begin).logical_or_(ids.ge(p.part.end));
  const at::Tensor nowhere = ids.lt(0).logical_or_(ids.ge(p.whole[0]));
  // Rows of other ranks read row 0 and are zeroed; an id that no rank has must fail, as with one rank.
  const at::Tensor own = (ids - p.part.begin).masked_fill_(elsewhere, 0).masked_fill_(nowhere, -1);
  const int64_t padding = p.padding_idx.value_or(-1) - p.part.begin;
  const bool has_padding = padding >= 0 && padding < p.part.size();
  const at::Tensor rows = at::embedding(without_mark(weight), own, has_padding ? padding : -1, false, sparse);
  return sum_over_ranks(rows.masked_fill(elsewhere.unsqueeze(-1), 0), p.ranks.group);
}

// How an operator that is not a layer treats a part.
enum class Use {
  split, ///< it acts on each element or views them: what it returns is split the same way
  plain, ///< it reads no element
  refused
};

template <size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::ranges::find(names, name) != names.end();
}

constexpr std::array<std::string_view, 14> kInPlace = {
    "zero_",      "fill_",        "copy_",   "set_",       "normal_",     "uniform_", "random_",
    "bernoulli_", "exponential_", "cauchy_", "geometric_", "log_normal_", "detach_",  "requires_grad_"};
constexpr std::array<std::string_view, 3> kNoElements = {"_has_compatible_shallow_copy_type", "is_same_size",
                                                         "record_stream"};

Use use_of(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  constexpr std::string_view aten = "aten::";
  if (!name.starts_with(aten)) {
    return Use::refused;
  }
  name.remove_prefix(aten.size());
  if (name.ends_with("_like") || name.starts_with("new_") || is_one_of(name, kNoElements)) {
    return Use::plain;
  }
  const bool list_in_place = (name.starts_with("_foreach_") || name.starts_with("_fused_")) && name.ends_with('_');
  const bool view = std::ranges::any_of(op.schema().returns(), [](const c10::Argument& out) {
    return out.alias_info() != nullptr && !out.alias_info()->isWrite();
  });
  return view || list_in_place || op.hasTag(at::Tag::pointwise) || is_one_of(name, kInPlace) || name == "_to_copy" ||
                 name == "clone"
             ? Use::split
             : Use::refused;
}

void collect_tensors(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) {
    out.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    const auto list = value.toTensorVector();
    out.insert(out.end(), list.begin(), list.end());
  } else if (value.isOptionalTensorList() || value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      collect_tensors(element, out);
    }
  }
}

std::vector<at::Tensor> tensors_of(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> out;
  for (const c10::IValue& value : values) {
    collect_tensors(value, out);
  }
  return out;
}

bool is_reverse(at::IntArrayRef a, at::IntArrayRef b) {
  return std::equal(a.begin(), a.end(), b.rbegin(), b.rend());
}

constexpr std::array<std::string_view, 5> kTransposes = {"aten::t", "aten::numpy_T", "aten::mT", "aten::t_",
                                                         "aten::transpose"};
constexpr std::array<std::string_view, 4> kPermutations = {"aten::permute", "aten::swapaxes", "aten::swapdims",
                                                           "aten::movedim"};

// How `out` is derived from the parameter, if `in` is by `form`.
Form form_of(std::string_view op, const at::Tensor& out, const at::Tensor& in, Form form) {
  if (form == Form::other) {
    return form;
  }
  const bool may_transpose = is_one_of(op, kTransposes) || is_one_of(op, kPermutations);
  if (may_transpose && out.dim() == 2 && is_reverse(out.sizes(), in.sizes()) &&
      is_reverse(out.strides(), in.strides())) {
    return form == Form::same ? Form::transposed : Form::same;
  }
  const bool moved = may_transpose || op == "aten::as_strided";
  return out.sizes() == in.sizes() && (!moved || out.strides() == in.strides()) ? form : Form::other;
}

void mark_outputs(std::string_view op, const std::vector<at::Tensor>& inputs, const at::Tensor& in, const Mark& mark,
                  const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& out : outputs) {
    const bool is_input = std::ranges::any_of(inputs, [&](const at::Tensor& input) { return input.is_same(out); });
    if (!out.defined() || is_input) {
      continue;
    }
    const Form form = form_of(op, out, in, mark.form);
    // A bias is added to split features: the result is an activation.
    if (!mark.parameter || !mark.parameter->is_bias() || (form == Form::same && op != "aten::add")) {
      set_mark(out, {mark.parameter, form});
    }
  }
}

// Split operands must be split alike, or their elements do not correspond.
bool fit_together(const Mark& a, const Mark& b) {
  const bool same = a.parameter == b.parameter ||
                    (a.parameter && b.parameter && a.parameter->dim == b.parameter->dim &&
                     a.parameter->part.begin == b.parameter->part.begin &&
                     a.parameter->part.end == b.parameter->part.end && a.parameter->whole == b.parameter->whole);
  return same && a.form == b.form;
}

void any_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const std::string& name = op.operator_name().name;
  const std::vector<at::Tensor> inputs = tensors_of(torch::jit::last(*stack, op.schema().arguments().size()));
  const auto marked = std::ranges::find_if(inputs, is_marked);
  if (marked == inputs.end()) {
    refuse(name, {});
  }
  const Mark mark = *mark_of(*marked);
  const Use use = use_of(op);
  const bool list = name.starts_with("aten::_f"); // optimizers' operators over many parameters
  const bool mixed = std::ranges::any_of(
      inputs, [&](const at::Tensor& input) { return is_marked(input) && !fit_together(*mark_of(input), mark); });
  const at::Tensor& first = inputs.front();
  // The part could not be tracked in an unmarked tensor that a forward pass writes.
  const bool lost = op.schema().is_mutable() && first.defined() && !is_marked(first) && at::GradMode::is_enabled() &&
                    !(mark.parameter && mark.parameter->is_bias());
  if (use == Use::refused || (use == Use::split && !list && (mixed || lost))) {
    refuse(name, mark);
  }
  const at::Tensor in = *marked;
  const at::IntArrayRef now = in.sizes();
  const c10::impl::ExcludeDispatchKeyGuard below(kSplitKey);
  op.callBoxed(stack);
  if (in.sizes() != now) {
    throw InputError(kPart,
                     concat("the operator ", name, " changed the shape of ", name_of(mark), ", a split parameter"));
  }
  if (use == Use::split && !list) {
    mark_outputs(name, inputs, in, mark, tensors_of(torch::jit::last(*stack, op.schema().returns().size())));
  }
}

} // namespace

void register_split_operators() {
  // Never deleted: the destructor would remove the operators while marked tensors live.
  static auto* const every = new torch::Library(torch::Library::IMPL, "_", kSplitKey, __FILE__, __LINE__);
  static auto* const aten = new torch::Library(torch::Library::IMPL, "aten", kSplitKey, __FILE__, __LINE__);
  every->fallback(torch::CppFunction::makeFromBoxedFunction<&any_operator>());
  aten->impl("linear", TORCH_FN(linear));
  aten->impl("matmul", TORCH_FN(matmul));
  aten->impl("mm", TORCH_FN(mm));
  aten->impl("addmm", TORCH_FN(addmm));
  aten->impl("embedding", TORCH_FN(embedding));
}

} // namespace trireme::tensor
