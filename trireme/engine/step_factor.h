#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace trireme::engine {

// The same arithmetic of loss and norm, with the same roundings, for numbers on the host (double) and on a GPU
// (at::Tensor: [1], fp64), for which the host does not wait.

inline double rounded_to_fp32(double x) {
  return static_cast<float>(x);
}
inline at::Tensor rounded_to_fp32(const at::Tensor& x) {
  return x.to(torch::kFloat32);
}
inline double square_root(double x) {
  return std::sqrt(x);
}
inline at::Tensor square_root(const at::Tensor& x) {
  return x.sqrt();
}
inline bool is_finite(double x) {
  return std::isfinite(x);
}
inline at::Tensor is_finite(const at::Tensor& x) {
  return x.isfinite();
}
inline bool both(bool a, bool b) {
  return a && b;
}
inline at::Tensor both(const at::Tensor& a, const at::Tensor& b) {
  return a.logical_and(b);
}
inline double constant_like(double, double value) {
  return value;
}
inline at::Tensor constant_like(const at::Tensor& like, double value) {
  return torch::full_like(like, value);
}
inline at::Tensor constant_like(const at::Tensor& /*like*/, const at::Tensor& value) {
  return value;
}
/// min(1, limit / x).
inline double ratio_up_to_one(double limit, double x) {
  return std::min(1.0, limit / x);
}
inline at::Tensor ratio_up_to_one(double limit, const at::Tensor& x) {
  return torch::full_like(x, limit).div(x).clamp_max(1);
}

/// The mean over `ranks`, rounded to fp32, the type of losses: further digits depend on the order in which backends
/// add.
template <typename Number>
Number mean_over_ranks(const Number& sum, double ranks) {
  return rounded_to_fp32(sum / ranks);
}

/// Result of step_factor() for the loss and squared norm of a step.
template <typename Number>
struct StepFactor {
  decltype(is_finite(Number())) finite; // both loss and norm are
  Number norm;                          // of the gradient, without the loss scale
  Number factor;                        // multiplies the Reducer's gradients: `unscale` times the clip factor
};

/// Clips norms above `clipping`; 0: no clipping. Without a norm only the loss decides. `unscale` may be a Number, too.
template <typename Number, typename Scale>
StepFactor<Number> step_factor(const Number& loss, const Number& squared_norm, bool has_norm, const Scale& unscale,
                               double clipping) {
  StepFactor<Number> step{is_finite(loss), squared_norm, constant_like(loss, unscale)};
  if (has_norm) {
    step.norm = square_root(squared_norm) * unscale;
    step.finite = both(step.finite, is_finite(step.norm));
    if (clipping > 0) {
      step.factor = step.factor * ratio_up_to_one(clipping, step.norm + 1e-6);
    }
  }
  return step;
}

} // namespace trireme::engine
