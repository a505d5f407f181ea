#pragma once

#include <trireme/memory/activations/activations.h>
#include <trireme/memory/recompute/tensor_list.h>
#include <trireme/shards/zero/unit.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace trireme::zero {

/// A module of class Impl whose parameters are gathered only while they are used (ZeRO stage 3); at other stages a
/// plain Impl. Names of parameters do not change. A Sharded inside another belongs to the outer one's unit.
template <typename Impl>
class ShardedImpl : public Impl, public Unit {
 public:
  /// Builds an Impl from the arguments.
  template <typename... A>
    requires std::constructible_from<Impl, A...>
  explicit ShardedImpl(A&&... args) : Impl(std::forward<A>(args)...) {
    built(*this);
  }
  /// The same; `initialise` sets the parameters before they are sharded.
  template <std::invocable<Impl&> F, typename... A>
    requires std::constructible_from<Impl, A...>
  explicit ShardedImpl(F&& initialise, A&&... args) : Impl(std::forward<A>(args)...) {
    initialise(*this);
    built(*this);
  }

  /// Runs forward. If it maps tensors to tensors, it is a part of the model whose activations may be recomputed or
  /// moved (activations::run()).
  template <typename... A>
  auto forward(A&&... args) {
    using Result = decltype(Impl::forward(std::forward<A>(args)...));
    if constexpr (recompute::IsTensors<Result>::value && (std::is_same_v<std::decay_t<A>, at::Tensor> && ...)) {
      if (activations::active()) {
        return activations::call(
            part(*this, typeid(Impl)),
            [this](const std::same_as<at::Tensor> auto&... inputs) {
              return use([&] { return Impl::forward(inputs...); });
            },
            args...);
      }
    }
    return use([&] { return Impl::forward(std::forward<A>(args)...); });
  }
  /// Calls f() with the parameters gathered, for uses outside forward(): a head that uses the embedding's weight. f
  /// returns a tensor, or a vector, pair or tuple of tensors.
  template <typename F>
  auto use(F&& f) {
    enter(*this);
    auto outputs = f();
    leave(*this, outputs);
    return outputs;
  }

  torch::nn::Module& module() override { return *this; }
};

/// The holder: Sharded<Block> block(options); y = block(x), or block->forward(x).
///
/// Call it through its own type. A call through Block's (`as<BlockImpl>()->forward`) gathers nothing, and reading a
/// parameter then throws an error that explains it.
template <typename M>
class Sharded : public torch::nn::ModuleHolder<ShardedImpl<typename M::ContainedType>> {
 public:
  using torch::nn::ModuleHolder<ShardedImpl<typename M::ContainedType>>::ModuleHolder;
};

/// A torch::nn::ModuleList of Sharded<M>; its loop has their type: for (auto& block : *blocks) x = block->forward(x).
/// Names of parameters are those of a ModuleList.
template <typename M>
class ShardedListImpl : public torch::nn::ModuleListImpl {
 public:
  /// Appends a Sharded<M> built from the arguments.
  template <typename... A>
  void emplace_back(A&&... args) {
    blocks_.emplace_back(std::forward<A>(args)...);
    push_back(blocks_.back().ptr());
  }
  auto begin() { return blocks_.begin(); }
  auto end() { return blocks_.end(); }

 private:
  std::vector<Sharded<M>> blocks_;
};

template <typename M>
class ShardedList : public torch::nn::ModuleHolder<ShardedListImpl<M>> {
 public:
  using torch::nn::ModuleHolder<ShardedListImpl<M>>::ModuleHolder;
};

} // namespace trireme::zero
