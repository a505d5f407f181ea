#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::recompute {

using Tensors = std::vector<at::Tensor>;

template <typename T>
struct IsTuple : std::false_type {};
template <typename... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};
template <typename A, typename B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

/// True if T is a tensor, a vector of tensors, or a pair or tuple of these (also nested).
template <typename T>
struct IsTensors : std::bool_constant<std::is_same_v<T, at::Tensor> || std::is_same_v<T, Tensors>> {};
template <typename... T>
struct IsTensors<std::tuple<T...>> : std::bool_constant<(IsTensors<T>::value && ...)> {};
template <typename A, typename B>
struct IsTensors<std::pair<A, B>> : std::bool_constant<IsTensors<A>::value && IsTensors<B>::value> {};

/// Appends the tensors of a tensor, a vector of tensors, or a pair or tuple of these (also nested).
template <typename T>
void append(Tensors& list, T&& value) {
  using Plain = std::decay_t<T>;
  if constexpr (std::is_convertible_v<T&&, at::Tensor>) {
    list.push_back(std::forward<T>(value));
  } else if constexpr (IsTuple<Plain>::value) {
    std::apply([&list](auto&&... element) { (append(list, std::forward<decltype(element)>(element)), ...); },
               std::forward<T>(value));
  } else {
    static_assert(std::is_same_v<Plain, Tensors>,
                  "expected a tensor, a vector of tensors, or a pair or tuple of these");
    for (auto& tensor : value) {
      list.push_back(tensor);
    }
  }
}

/// Rebuilds a T from a list that append() made, starting at `position`. A vector takes all remaining tensors.
template <typename T>
T take(const Tensors& list, size_t& position) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return list.at(position++);
  } else if constexpr (IsTuple<T>::value) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return T{take<std::tuple_element_t<I, T>>(list, position)...}; // braces: from left to right
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    static_assert(std::is_same_v<T, Tensors>, "expected a tensor, a vector of tensors, or a pair or tuple of these");
    Tensors rest(list.begin() + static_cast<std::ptrdiff_t>(position), list.end());
    position = list.size();
    return rest;
  }
}

} // namespace trireme::recompute
