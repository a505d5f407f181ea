#pragma once

#include <trireme/parallel/tensor/split_module.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <string>

/// What tests of split layers compare.
namespace trireme::tensor {

/// Values that repeat nowhere, of no mean.
inline at::Tensor wave(at::IntArrayRef sizes, at::ScalarType type) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble).mul_(1.7).sin_().reshape(sizes).to(type);
}

inline void expect_close(const at::Tensor& mine, const at::Tensor& expected, const std::string& what,
                         double tolerance) {
  ASSERT_TRUE(mine.defined()) << what;
  ASSERT_TRUE(expected.defined()) << what;
  ASSERT_EQ(mine.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(mine.allclose(expected, tolerance, tolerance))
      << what << ": differs by " << (mine - expected).abs().max().item<double>();
}

/// `mine`, the parameter `name` of `model` or its gradient, is this rank's part of `whole`.
inline void expect_part(const at::Tensor& mine, const at::Tensor& whole, const torch::nn::Module& model,
                        const std::string& name, double tolerance) {
  const Placements placements = placements_of(model);
  const auto found = placements.find(model.named_parameters()[name].unsafeGetTensorImpl());
  expect_close(mine, found == placements.end() ? whole : box_of(whole, found->second, mine.sizes()), name, tolerance);
}

} // namespace trireme::tensor
