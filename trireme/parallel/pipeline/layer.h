#pragma once

#include <trireme/parallel/pipeline/layer_call.h>

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

namespace trireme::pipeline {

/// A built layer, ready to run.
struct BuiltLayer {
  std::shared_ptr<torch::nn::Module> module; ///< null: a function
  Forward forward;
};

/// Layers with the same key share parameters.
struct Tie {
  std::string key;
  /// Names of the shared parameters within the module; empty: all of them.
  std::vector<std::string> attributes;
};

/// Describes how to make one layer and how to call it. Copies are cheap.
///
/// Made from a module holder (`torch::nn::Linear(3, 4)`), a shared pointer to a module class, `torch::nn::AnyModule`,
/// or any callable. A forward() or callable takes 1 to 8 tensors (all outputs of the layer before) or a vector of them,
/// and returns a tensor, a vector, or a pair or tuple of tensors.
class Layer {
 public:
  /// Errors: InputError for a holder or pointer without a module.
  template <typename F>
    requires(!std::is_base_of_v<Layer, F> && (detail::Eager<F> || detail::Callable<F>))
  Layer(F f) : Layer(recipe_from(std::move(f))) {}

  /// Sets the prefix of its parameters in checkpoints; default: the layer's index in the full list.
  Layer& name(std::string name);
  /// Sets a function that is called on the module, without autograd, when the layer is built, but not when it is only
  /// counted. Errors: InputError for a function layer.
  Layer& initialise(std::function<void(torch::nn::Module&)> initialise);

  /// Sets which parameters, by their names in the module, build() makes require no gradient. They are counted as before
  /// by partitions. frozen.h has this for the parameters of a list.
  Layer& freeze(std::function<bool(const std::string& parameter)> is_frozen);

  const std::optional<std::string>& name() const { return recipe_->name; }
  /// The class name without namespaces, template arguments and "Impl": "Linear"; "function" for callables.
  const std::string& type() const { return recipe_->type; }
  /// True if the module exists only after build().
  bool is_lazy() const { return recipe_->lazy; }
  const std::optional<Tie>& tie() const { return recipe_->tie; }
  /// The module that the layer was made from; null for a function and for a module that build() makes.
  std::shared_ptr<torch::nn::Module> given_module() const {
    return recipe_->make && !recipe_->lazy ? recipe_->make() : nullptr;
  }

  /// Makes a new module (LayerSpec), or returns the one that the layer was made from. Calling the layer throws
  /// InputError for a wrong number of tensors, or if it returns none or an undefined one. Errors: InputError when the
  /// tie names a parameter that the module does not have.
  BuiltLayer build() const;
  /// This layer with the module that another layer of its tie has built. Errors: InputError if its class differs.
  BuiltLayer share(const std::shared_ptr<torch::nn::Module>& module) const;
  /// Counts the elements of the parameters that require a gradient. A LayerSpec's module is freed and, if its
  /// constructor permits (see count_parameters.h), never allocated.
  int64_t trainable_parameters() const;
  /// Names of the parameters in the module, in order; a shared one occurs once. Cost: as trainable_parameters().
  std::vector<std::string> parameter_names() const;
  /// Those that freeze() was told of.
  std::vector<std::string> frozen_parameters() const;

 protected:
  struct Recipe {
    std::string type;
    std::optional<std::string> name = std::nullopt;
    std::optional<Tie> tie = std::nullopt;
    bool lazy = false;
    std::function<std::shared_ptr<torch::nn::Module>()> make = nullptr; // null: a function
    std::function<Forward(const std::shared_ptr<torch::nn::Module>&)> bind = nullptr;
    std::function<void(torch::nn::Module&)> initialise = nullptr;
    std::function<bool(const std::string&)> is_frozen = nullptr;
  };
  explicit Layer(Recipe recipe) : recipe_(std::make_shared<Recipe>(std::move(recipe))) {}

  /// A copy of the recipe for this layer alone, to be changed.
  Recipe& change();

  template <typename Impl>
  static std::shared_ptr<Impl> cast(const std::shared_ptr<torch::nn::Module>& module, const std::string& type) {
    auto typed = std::dynamic_pointer_cast<Impl>(module);
    if (!typed) {
      refuse_module(module, type);
    }
    return typed;
  }
  static std::string type_name(const std::type_info& type);

  template <typename M, typename... A>
  static Recipe recipe_of_class(A... args);

 private:
  template <typename F>
  static Recipe recipe_from(F f);
  template <typename Impl>
  static Recipe recipe_of_module(std::shared_ptr<Impl> module);
  static Recipe recipe_of_any(const torch::nn::AnyModule& any);
  [[noreturn]] static void refuse_module(const std::shared_ptr<torch::nn::Module>& module, const std::string& type);
  static void require_module(const torch::nn::Module* module);

  std::shared_ptr<Recipe> recipe_;
};

/// A layer that is built only on its own stage, from copies of the arguments.
///
///   LayerSpec<torch::nn::Linear>(784, 128)
///   LayerSpec<torch::nn::Conv2d>(torch::nn::Conv2dOptions(3, 64, 11).stride(4))
///
/// M: a module holder or a module class.
template <typename M>
class LayerSpec : public Layer {
 public:
  template <typename... A>
  explicit LayerSpec(A... args) : Layer(recipe_of_class<M>(std::move(args)...)) {}
};

/// A LayerSpec that shares its parameters with all others of its key, on any stage.
///
///   TiedLayerSpec<torch::nn::Embedding>("tokens", 50257, 768),
///   ...
///   TiedLayerSpec<torch::nn::Embedding>("tokens", 50257, 768).forward_fn(
///       [](torch::nn::Embedding& embedding, at::Tensor x) { return at::linear(x, embedding->weight); })
template <typename M>
class TiedLayerSpec : public Layer {
 public:
  template <typename... A>
  explicit TiedLayerSpec(std::string key, A... args) : Layer(recipe_of_class<M>(std::move(args)...)) {
    change().tie = Tie{std::move(key), {}};
  }

  /// Replaces forward(): f(M&, tensors...) or f(module class&, tensors...).
  template <typename F>
  TiedLayerSpec& forward_fn(F f) {
    using Impl = typename detail::ImplOf<M>::Type;
    change().bind = [f = std::make_shared<F>(std::move(f)),
                     type = type()](const std::shared_ptr<torch::nn::Module>& module) {
      return detail::forward_of(detail::CallWithModule<F, M, Impl>{f, cast<Impl>(module, type)}, type);
    };
    return *this;
  }
  /// Shares only the parameters with these names.
  TiedLayerSpec& attributes(std::vector<std::string> names) {
    change().tie->attributes = std::move(names);
    return *this;
  }

  using Layer::name;
  TiedLayerSpec& name(std::string name) {
    Layer::name(std::move(name));
    return *this;
  }
};

namespace detail {

template <typename M>
struct PointeeOf {
  using Type = typename ImplOf<M>::Type;
};
template <typename M>
struct PointeeOf<std::shared_ptr<M>> {
  using Type = M;
};

template <typename Result, typename Class, typename... Arguments>
std::type_identity<Class> class_of(Result (Class::*)(Arguments...));

/// True if a class is SequentialImpl or derives from it, and has no forward() of its own.
template <typename Impl>
concept InheritsForward = std::is_base_of_v<torch::nn::SequentialImpl, Impl> && requires {
  {
    class_of(&Impl::template forward<at::Tensor, at::Tensor>)
  } -> std::same_as<std::type_identity<torch::nn::SequentialImpl>>;
};
/// True for a holder of such a module, a pointer to one, or a module itself.
template <typename F>
concept IsSequential = InheritsForward<typename PointeeOf<F>::Type>;

template <typename F>
std::shared_ptr<torch::nn::SequentialImpl> sequential_of(F one) {
  if constexpr (is_holder<F>) {
    return one.is_empty() ? nullptr : one.ptr();
  } else if constexpr (is_module<F>) {
    return std::make_shared<F>(std::move(one));
  } else {
    return one;
  }
}

} // namespace detail

/// Layers in order. Lists within lists and Sequentials are flattened; a Sequential's child keeps its name unless it is
/// a number. A class that derives from SequentialImpl without its own forward() is flattened too; with its own
/// forward() it is one layer.
///
///   LayerList{LayerSpec<torch::nn::Linear>(8, 8), torch::nn::ReLU(), [](at::Tensor x) { return x.flatten(1); }}
class LayerList {
 public:
  LayerList() = default;
  LayerList(std::initializer_list<LayerList> lists);
  template <typename F>
    requires(std::is_base_of_v<Layer, F> || detail::Eager<F> || detail::Callable<F>)
  LayerList(F one) {
    if constexpr (detail::IsSequential<F>) {
      push_back(flatten(detail::sequential_of(std::move(one))));
    } else {
      layers_.emplace_back(std::move(one));
    }
  }
  LayerList(torch::nn::Sequential sequential);
  LayerList(std::vector<Layer> layers) : layers_(std::move(layers)) {}

  void push_back(LayerList list);

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }
  const Layer& operator[](int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  std::vector<Layer>::const_iterator begin() const { return layers_.begin(); }
  std::vector<Layer>::const_iterator end() const { return layers_.end(); }

 private:
  static LayerList flatten(const std::shared_ptr<torch::nn::SequentialImpl>& sequential);

  std::vector<Layer> layers_;
};

template <typename M, typename... A>
Layer::Recipe Layer::recipe_of_class(A... args) {
  using Impl = typename detail::ImplOf<M>::Type;
  static_assert(std::is_base_of_v<torch::nn::Module, Impl>, "LayerSpec<M>: M is a module holder or a module class");
  static_assert(std::is_constructible_v<Impl, A...>, "M has no constructor for these arguments");
  Recipe recipe{type_name(typeid(Impl))};
  recipe.lazy = true;
  recipe.make = [args = std::tuple<A...>(std::move(args)...)] {
    std::tuple<A...> copies = args;
    return std::apply([](auto&... copy) { return std::make_shared<Impl>(std::move(copy)...); }, copies);
  };
  recipe.bind = [type = recipe.type](const std::shared_ptr<torch::nn::Module>& module) {
    return detail::forward_of(detail::CallForward<Impl>{cast<Impl>(module, type)}, type);
  };
  return recipe;
}

template <typename Impl>
Layer::Recipe Layer::recipe_of_module(std::shared_ptr<Impl> module) {
  require_module(module.get());
  const torch::nn::Module& base = *module;
  Recipe recipe{type_name(typeid(base))};
  recipe.make = [module] { return module; };
  recipe.bind = [type = recipe.type](const std::shared_ptr<torch::nn::Module>& given) {
    return detail::forward_of(detail::CallForward<Impl>{cast<Impl>(given, type)}, type);
  };
  return recipe;
}

template <typename F>
Layer::Recipe Layer::recipe_from(F f) {
  if constexpr (detail::is_holder<F>) {
    if (f.is_empty()) {
      require_module(nullptr);
    }
    return recipe_of_module(f.ptr());
  } else if constexpr (detail::is_module_pointer<F>) {
    return recipe_of_module(std::move(f));
  } else if constexpr (detail::is_module<F>) {
    return recipe_of_module(std::make_shared<F>(std::move(f)));
  } else if constexpr (std::is_same_v<F, torch::nn::AnyModule>) {
    return recipe_of_any(f);
  } else {
    Recipe recipe{"function"};
    recipe.bind = [forward = detail::forward_of(std::move(f), "function")](const auto&) { return forward; };
    return recipe;
  }
}

} // namespace trireme::pipeline
