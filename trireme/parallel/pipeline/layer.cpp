#include <trireme/parallel/pipeline/layer.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/parallel/pipeline/count_parameters.h>

#include <c10/core/GradMode.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string_view>

namespace trireme::pipeline {
namespace detail {
namespace {

std::string shapes_of(const Tensors& tensors) {
  std::vector<std::string> parts;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(tensor.defined() ? concat(tensor.sizes(), ' ', c10::getDtypeNames(tensor.scalar_type()).first)
                                     : "undefined");
  }
  return join(parts, ", ");
}

std::string plural(size_t count) {
  return concat(count, count == 1 ? " tensor" : " tensors");
}

} // namespace

void refuse_count(const std::string& type, const std::vector<size_t>& taken, const Tensors& inputs) {
  std::string what = plural(taken.back());
  if (taken.size() > 1) {
    what = concat(taken.front(), taken.size() == 2 ? " or " : " to ", what);
  }
  throw InputError(
      "pipeline",
      concat(type, " takes ", what, " and got ", inputs.size(), inputs.empty() ? "" : ": ", shapes_of(inputs)),
      "A layer gets all outputs of the layer before it.");
}

void check_outputs(const std::string& type, const Tensors& outputs) {
  if (outputs.empty()) {
    throw InputError("pipeline", concat(type, " returned nothing"), "Return at least one tensor.");
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) {
      throw InputError(
          "pipeline",
          concat(type, " returned an undefined tensor", outputs.size() == 1 ? "" : concat(" as number ", i)),
          "Return a tensor of zeros, or fewer tensors.");
    }
  }
}

namespace {

// A module in an AnyModule takes exactly the arguments of its forward(): tensors, a vector, or a tuple.
enum Style { one_by_one, vector, tuple, pair, unknown };

template <size_t... I>
torch::nn::AnyValue forward_each(torch::nn::AnyModule& module, const Tensors& inputs, std::index_sequence<I...>) {
  return module.any_forward(at::Tensor(inputs[I])...);
}

template <size_t... I>
torch::nn::AnyValue forward_tuple(torch::nn::AnyModule& module, const Tensors& inputs, std::index_sequence<I...>) {
  return module.any_forward(std::tuple<TensorAt<I>...>(inputs[I]...));
}

// Calls f(index_sequence<0 .. count - 1>) for a count known only at run time.
template <typename F>
torch::nn::AnyValue with_count(size_t count, F f) {
  switch (count) {
    case 1:
      return f(std::make_index_sequence<1>());
    case 2:
      return f(std::make_index_sequence<2>());
    case 3:
      return f(std::make_index_sequence<3>());
    case 4:
      return f(std::make_index_sequence<4>());
    case 5:
      return f(std::make_index_sequence<5>());
    case 6:
      return f(std::make_index_sequence<6>());
    case 7:
      return f(std::make_index_sequence<7>());
    default:
      return f(std::make_index_sequence<8>());
  }
}

torch::nn::AnyValue forward_as(Style style, torch::nn::AnyModule& module, const Tensors& inputs) {
  switch (style) {
    case one_by_one:
      return with_count(inputs.size(), [&](auto indices) { return forward_each(module, inputs, indices); });
    case tuple:
      return with_count(inputs.size(), [&](auto indices) { return forward_tuple(module, inputs, indices); });
    case pair:
      return module.any_forward(std::pair<at::Tensor, at::Tensor>(inputs.at(0), inputs.at(1)));
    default:
      return module.any_forward(Tensors(inputs));
  }
}

// True if forward() was not called, because it takes other arguments.
bool is_mismatch(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  return text.find("forward() method expects") != std::string_view::npos || text.rfind("Expected argument #", 0) == 0;
}

template <typename... T>
bool append_if_one_of(Tensors& outputs, torch::nn::AnyValue& value) {
  const auto try_one = [&](auto* typed) {
    if (typed != nullptr) {
      recompute::append(outputs, *typed);
    }
    return typed != nullptr;
  };
  return (try_one(value.try_get<T>()) || ...);
}

Tensors outputs_of(torch::nn::AnyValue value, const std::string& type) {
  using T = at::Tensor;
  Tensors outputs;
  const bool known = append_if_one_of<T, Tensors, std::pair<T, T>, std::tuple<T>, std::tuple<T, T>, std::tuple<T, T, T>,
                                      std::tuple<T, T, T, T>, std::tuple<T, std::tuple<T, T>>>(outputs, value);
  if (!known) {
    throw InputError(
        "pipeline", concat(type, " returned a ", c10::demangle(value.type_info().name())),
        "A layer of a Sequential returns a tensor, a vector of tensors, a pair, or a tuple of up to four.");
  }
  check_outputs(type, outputs);
  return outputs;
}

class CallAny {
 public:
  CallAny(torch::nn::AnyModule module, std::string type) : module_(std::move(module)), type_(std::move(type)) {}

  Tensors operator()(const Tensors& inputs) {
    if (inputs.empty() || inputs.size() > kMaxArguments) {
      throw InputError("pipeline", concat(type_, " got ", inputs.size(),
                                          " tensors; a layer of a Sequential takes 1 to ", kMaxArguments));
    }
    if (style_ != unknown) {
      return outputs_of(forward_as(style_, module_, inputs), type_);
    }
    std::string refusal;
    for (const Style style : {one_by_one, vector, tuple, pair}) {
      if (style == pair && inputs.size() != 2) {
        continue;
      }
      try {
        torch::nn::AnyValue value = forward_as(style, module_, inputs);
        style_ = style;
        return outputs_of(std::move(value), type_);
      } catch (const c10::Error& error) {
        if (!is_mismatch(error)) {
          throw;
        }
        if (refusal.empty()) {
          refusal = error.what_without_backtrace();
        }
      }
    }
    throw InputError("pipeline",
                     concat(type_, " does not take ", plural(inputs.size()), " (", shapes_of(inputs), "): ", refusal));
  }

 private:
  torch::nn::AnyModule module_;
  std::string type_;
  std::atomic<Style> style_ = unknown;
};

} // namespace
} // namespace detail

Layer& Layer::name(std::string name) {
  change().name = std::move(name);
  return *this;
}

Layer& Layer::initialise(std::function<void(torch::nn::Module&)> initialise) {
  if (!recipe_->make) {
    throw InputError("pipeline", "initialise() of a function layer, which has no module");
  }
  change().initialise = std::move(initialise);
  return *this;
}

Layer& Layer::freeze(std::function<bool(const std::string& parameter)> is_frozen) {
  change().is_frozen = std::move(is_frozen);
  return *this;
}

Layer::Recipe& Layer::change() {
  recipe_ = std::make_shared<Recipe>(*recipe_);
  return *recipe_;
}

BuiltLayer Layer::build() const {
  if (!recipe_->make) {
    return {nullptr, recipe_->bind(nullptr)};
  }
  std::shared_ptr<torch::nn::Module> module = recipe_->make();
  if (recipe_->tie) {
    const auto parameters = module->named_parameters();
    for (const std::string& attribute : recipe_->tie->attributes) {
      if (!parameters.contains(attribute)) {
        throw InputError("pipeline",
                         concat("tie \"", recipe_->tie->key, "\" names parameter \"", attribute, "\", which ", type(),
                                " does not have."),
                         "It has: " + join(parameters.keys(), ", ") + ".");
      }
    }
  }
  if (recipe_->initialise) {
    const c10::NoGradGuard no_grad;
    recipe_->initialise(*module);
  }
  if (recipe_->is_frozen) {
    std::set<const void*> seen; // a shared parameter has its first name
    for (const auto& item : module->named_parameters()) {
      if (seen.insert(item.value().unsafeGetTensorImpl()).second && recipe_->is_frozen(item.key())) {
        item.value().set_requires_grad(false);
      }
    }
  }
  return {module, recipe_->bind(module)};
}

BuiltLayer Layer::share(const std::shared_ptr<torch::nn::Module>& module) const {
  return {recipe_->make ? module : nullptr, recipe_->bind(module)};
}

int64_t Layer::trainable_parameters() const {
  if (!recipe_->make) {
    return 0;
  }
  return recipe_->lazy ? count_parameters(recipe_->make) : count_parameters(*recipe_->make());
}

std::vector<std::string> Layer::parameter_names() const {
  if (!recipe_->make) {
    return {};
  }
  return recipe_->lazy ? pipeline::parameter_names(recipe_->make) : pipeline::parameter_names(*recipe_->make());
}

std::vector<std::string> Layer::frozen_parameters() const {
  std::vector<std::string> names = recipe_->is_frozen ? parameter_names() : std::vector<std::string>();
  std::erase_if(names, [&](const std::string& name) { return !recipe_->is_frozen(name); });
  return names;
}

// "(anonymous namespace)::Net<4>::BlockImpl" is a Block.
std::string Layer::type_name(const std::type_info& type) {
  const std::string whole = c10::demangle(type.name());
  std::string name;
  int depth = 0;
  for (const char c : whole) {
    depth += c == '<' ? 1 : 0;
    if (depth == 0) {
      name += c;
    }
    depth -= c == '>' ? 1 : 0;
  }
  if (const size_t colons = name.rfind("::"); colons != std::string::npos) {
    name.erase(0, colons + 2);
  }
  constexpr std::string_view kImpl = "Impl";
  if (name.size() > kImpl.size() && name.compare(name.size() - kImpl.size(), kImpl.size(), kImpl) == 0) {
    name.resize(name.size() - kImpl.size());
  }
  return name;
}

void Layer::require_module(const torch::nn::Module* module) {
  if (module == nullptr) {
    throw InputError("pipeline", "a layer was made from an empty module holder or null pointer",
                     "Construct the module first, or use LayerSpec.");
  }
}

void Layer::refuse_module(const std::shared_ptr<torch::nn::Module>& module, const std::string& type) {
  const torch::nn::Module* const given = module.get();
  const std::string other = given == nullptr ? "an empty one" : type_name(typeid(*given));
  throw InputError("pipeline", concat("a tied layer of type ", type, " cannot share a module of another type: ", other),
                   "Tied layers of one key have one class; use another key, or forward_fn on the same class.");
}

Layer::Recipe Layer::recipe_of_any(const torch::nn::AnyModule& any) {
  require_module(any.is_empty() ? nullptr : any.ptr().get());
  const std::shared_ptr<torch::nn::Module> module = any.ptr();
  const torch::nn::Module& base = *module;
  Recipe recipe{type_name(typeid(base))};
  recipe.make = [module] { return module; };
  recipe.bind = [callee = std::make_shared<detail::CallAny>(any, recipe.type)](const auto&) -> Forward {
    return [callee](const Tensors& inputs) { return (*callee)(inputs); };
  };
  return recipe;
}

LayerList::LayerList(std::initializer_list<LayerList> lists) {
  for (const LayerList& list : lists) {
    push_back(list);
  }
}

LayerList::LayerList(torch::nn::Sequential sequential)
    : LayerList(flatten(detail::sequential_of(std::move(sequential)))) {}

LayerList LayerList::flatten(const std::shared_ptr<torch::nn::SequentialImpl>& sequential) {
  if (sequential == nullptr) {
    return Layer(torch::nn::AnyModule()); // throws the error for an empty Sequential
  }
  const auto children = sequential->named_children(); // a derived class may have registered other children
  LayerList list;
  for (const torch::nn::AnyModule& child : *sequential) {
    Layer layer(child);
    for (const auto& item : children) {
      const std::string& name = item.key();
      if (item.value() == child.ptr() &&
          !std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
        layer.name(name);
        break;
      }
    }
    list.layers_.push_back(std::move(layer));
  }
  return list;
}

void LayerList::push_back(LayerList list) {
  layers_.insert(layers_.end(), list.layers_.begin(), list.layers_.end());
}

} // namespace trireme::pipeline
