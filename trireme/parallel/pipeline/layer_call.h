#pragma once

#include <trireme/memory/recompute/tensor_list.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::pipeline {

using Tensors = std::vector<at::Tensor>;
using Forward = std::function<Tensors(const Tensors&)>;

} // namespace trireme::pipeline

/// Calls a layer's function or forward() with a list of tensors, whatever its arguments and results are.
namespace trireme::pipeline::detail {

inline constexpr size_t kMaxArguments = 8;

template <size_t>
using TensorAt = at::Tensor;

template <typename C, size_t... I>
constexpr bool takes_these(std::index_sequence<I...>) {
  return std::is_invocable_v<C&, TensorAt<I>...>;
}
template <typename C, size_t Count>
inline constexpr bool takes = takes_these<C>(std::make_index_sequence<Count>());

template <typename C, size_t... I>
constexpr bool takes_some(std::index_sequence<I...>) {
  return (takes<C, I + 1> || ...);
}
template <typename C>
inline constexpr bool takes_tensors = takes_some<C>(std::make_index_sequence<kMaxArguments>());

/// Does not try a generic lambda with a list, because its body may not compile for one.
template <typename C>
inline constexpr bool is_generic = std::is_class_v<C> && !requires { &C::operator(); };
template <typename Impl>
struct CallForward;
template <typename Impl>
inline constexpr bool is_generic<CallForward<Impl>> = false; // callable only with the arguments of forward()

template <typename C>
constexpr bool takes_a_list() {
  if constexpr (is_generic<C> && takes_tensors<C>) {
    return false;
  } else {
    return std::is_invocable_v<C&, const Tensors&>;
  }
}
template <typename C>
inline constexpr bool takes_list = takes_a_list<C>();

/// Throws the InputError for a wrong number of tensors.
[[noreturn]] void refuse_count(const std::string& type, const std::vector<size_t>& taken, const Tensors& inputs);
/// Throws InputError unless there is at least one tensor and each is defined.
void check_outputs(const std::string& type, const Tensors& outputs);

template <typename C, typename... T>
void collect(Tensors& outputs, C& callee, T&&... arguments) {
  if constexpr (std::is_void_v<std::invoke_result_t<C&, T...>>) {
    callee(std::forward<T>(arguments)...);
  } else {
    recompute::append(outputs, callee(std::forward<T>(arguments)...));
  }
}

template <typename C, size_t Count>
bool call_with(C& callee, const Tensors& inputs, Tensors& outputs) {
  if constexpr (takes<C, Count>) {
    if (inputs.size() == Count) {
      [&]<size_t... I>(std::index_sequence<I...>) {
        collect(outputs, callee, at::Tensor(inputs[I])...);
      }(std::make_index_sequence<Count>());
      return true;
    }
  }
  return false;
}

/// Calls a callable with the tensors as arguments, or with the list.
template <typename C>
Tensors call(C& callee, const std::string& type, const Tensors& inputs) {
  Tensors outputs;
  const bool called = [&]<size_t... I>(std::index_sequence<I...>) {
    return (call_with<C, I + 1>(callee, inputs, outputs) || ...);
  }(std::make_index_sequence<kMaxArguments>());
  if (!called) {
    if constexpr (takes_list<C>) {
      collect(outputs, callee, inputs);
    } else {
      std::vector<size_t> taken;
      [&]<size_t... I>(std::index_sequence<I...>) {
        ((takes<C, I + 1> ? taken.push_back(I + 1) : void()), ...);
      }(std::make_index_sequence<kMaxArguments>());
      refuse_count(type, taken, inputs);
    }
  }
  check_outputs(type, outputs);
  return outputs;
}

/// forward() of a module as a callable that exists only for forward()'s arguments.
template <typename Impl>
struct CallForward {
  std::shared_ptr<Impl> module;

  template <typename... T>
    requires requires(Impl& target, T&&... arguments) { target.forward(std::forward<T>(arguments)...); }
  decltype(auto) operator()(T&&... arguments) {
    return module->forward(std::forward<T>(arguments)...);
  }
};

/// Returns whether f takes the holder (1) or the module (2) in front of the tensors, or neither (0). A generic f gets
/// the holder.
template <typename F, typename M, typename Impl, typename... T>
constexpr int wanted_module() {
  if constexpr (std::is_same_v<M, Impl>) {
    return std::is_invocable_v<F&, Impl&, T...> ? 2 : 0;
  } else if constexpr (std::is_invocable_v<F&, M&, T...>) {
    return 1;
  } else {
    return std::is_invocable_v<F&, Impl&, T...> ? 2 : 0;
  }
}

/// f(holder, tensors...) or f(module, tensors...) as a callable of tensors.
template <typename F, typename M, typename Impl>
struct CallWithModule {
  std::shared_ptr<F> f;
  std::shared_ptr<Impl> module;

  template <typename... T>
    requires(wanted_module<F, M, Impl, T...>() != 0)
  decltype(auto) operator()(T&&... arguments) {
    if constexpr (wanted_module<F, M, Impl, T...>() == 1) {
      M holder(module);
      return (*f)(holder, std::forward<T>(arguments)...);
    } else {
      return (*f)(*module, std::forward<T>(arguments)...);
    }
  }
};

/// Wraps a callable; all copies of the result share it.
template <typename C>
Forward forward_of(C callee, std::string type) {
  static_assert(takes_tensors<C> || takes_list<C>, "a layer takes 1 to 8 tensors, or a vector of tensors");
  return [callee = std::make_shared<C>(std::move(callee)), type = std::move(type)](const Tensors& inputs) {
    return call(*callee, type, inputs);
  };
}

template <typename M, typename = void>
struct ImplOf {
  using Type = M;
};
template <typename M>
struct ImplOf<M, std::enable_if_t<torch::detail::is_module_holder<M>::value>> {
  using Type = typename M::ContainedType;
};

template <typename T>
inline constexpr bool is_holder = torch::detail::is_module_holder<T>::value;
template <typename T>
inline constexpr bool is_module = std::is_base_of_v<torch::nn::Module, T>;
template <typename T>
inline constexpr bool is_module_pointer = false;
template <typename T>
inline constexpr bool is_module_pointer<std::shared_ptr<T>> = is_module<T>;

/// Types that Layer can be made from, except other layers.
template <typename F>
concept Eager = is_holder<F> || is_module_pointer<F> || is_module<F> || std::same_as<F, torch::nn::AnyModule>;
template <typename F>
concept Callable = takes_tensors<F> || takes_list<F>;

} // namespace trireme::pipeline::detail
