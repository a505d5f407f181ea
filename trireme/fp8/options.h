#pragma once

#include <string>
#include <vector>

namespace trireme::fp8 {

/// How the products of a linear layer are scaled. The first three are torchao's, of the same names.
enum class Recipe {
  /// One scale per tensor. Gradients of outputs in e5m2, everything else in e4m3.
  tensorwise,
  /// One scale per row of each factor, all in e4m3.
  rowwise,
  /// rowwise, but gradients of weights are products of bf16.
  rowwise_with_gw_hp
};

/// The names in configurations.
constexpr const char* recipe_name(Recipe recipe) {
  return recipe == Recipe::tensorwise ? "tensorwise" : recipe == Recipe::rowwise ? "rowwise" : "rowwise_with_gw_hp";
}

/// FP8 products of the linear layers in a transformer's blocks: "fp8" of an engine's configuration.
struct Options {
  bool enabled = false;
  Recipe recipe = Recipe::tensorwise;
  /// Scales are rounded down to powers of two. Scaling is then exact, and results differ between devices only by the
  /// order of sums.
  bool round_scales_to_power_of_2 = true;
  /// Layers whose name contains one of these compute as without FP8.
  std::vector<std::string> filter_fqns = {"lm_head"};

  bool operator==(const Options&) const = default;
};

} // namespace trireme::fp8
