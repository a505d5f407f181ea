#pragma once

#include <trireme/memory/recompute/tensor_list.h>

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace trireme::recompute {

using Function = std::function<Tensors(const Tensors&)>;

struct Options {
  /// Dropout draws the same masks in the second call, and the random numbers after backward are those of a run without
  /// recomputation. Cost: a copy of the generator's state (5 kB) per call.
  bool preserve_rng_state = true;
  /// Buffers that f changes, such as BatchNorm's running statistics: restored after the second call. Cost: a copy of
  /// them.
  Tensors buffers = {};
};

/// Calls f without keeping its activations; backward calls f again on the same inputs. activations::run() chooses
/// between this and other policies.
///
/// Results and gradients are bit-equal to f(inputs). Only the inputs are kept between forward and backward. Peak memory
/// of a model in k such parts: the inputs of all parts and the activations of one. Cost: one more forward of f. Inputs
/// and outputs may be any tensors: without a gradient, integer, boolean, undefined. An input that f returns unchanged
/// is returned as the same tensor. Parameters inside f get their gradients as usual. f may itself recompute. If no
/// gradient is needed, f is simply called.
///
/// f is kept until backward, and must do the same both times. Random generators and autocast are restored for the
/// second call; other state that f reads, such as the training mode, is not. Buffers that f changes and Options does
/// not name change twice.
///
/// Use backward(): torch::autograd::grad() does not see the parameters inside f, but still fills their gradients. A
/// parameter that two recomputed functions use gets two gradients, so its hooks run twice.
///
/// Errors: InputError if f changes one of its inputs in place. In backward, Error if an input has been modified in
/// place since, if f returns other shapes, types or numbers of tensors the second time, or for derivatives of
/// derivatives (create_graph). Source: Chen et al. 2016, arXiv:1604.06174.
Tensors run(const Function& f, const Tensors& inputs, const Options& options = {});

/// The same for a callable of tensors. Returns the result of f: a tensor, a vector, a pair or a tuple.
///
///   at::Tensor y = trireme::recompute::call([&](at::Tensor x) { return block->forward(x); }, x);
template <typename F, typename... T>
auto call(F f, const T&... tensors) {
  static_assert((std::is_convertible_v<const T&, at::Tensor> && ...),
                "call() passes tensors only; capture other arguments in the lambda");
  using Result = std::decay_t<decltype(f(at::Tensor(tensors)...))>;
  const Function listed = [f = std::move(f)](const Tensors& inputs) mutable {
    Tensors outputs;
    [&]<size_t... I>(std::index_sequence<I...>) {
      append(outputs, f(at::Tensor(inputs[I])...));
    }(std::index_sequence_for<T...>());
    return outputs;
  };
  size_t position = 0;
  return take<Result>(run(listed, Tensors{at::Tensor(tensors)...}), position);
}

/// Calls f at the end of the outermost running backward. (autograd's queue_callback would call it at the end of a
/// recomputation's inner backward.) Errors: c10::Error outside of a backward.
void queue_at_end(std::function<void()> f);

} // namespace trireme::recompute
