#include <trireme/base/error.h>
#include <trireme/shards/bucket/shared_memory.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

namespace trireme::bucket {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const NamedTensors& tensors) {
  try {
    refuse_shared_memory(tensors);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

at::Tensor trained(const at::Tensor& values) {
  at::Tensor parameter = torch::empty({0});
  parameter.set_data(values);
  return parameter.requires_grad_();
}

TEST(SharedMemoryTest, TwoTensorsOverOneMemoryAreRefusedByName) {
  const at::Tensor values = torch::zeros({6, 4});
  const auto names_both =
      AllOf(HasSubstr("\"embedding\""), HasSubstr("\"head\""), HasSubstr("share memory"), HasSubstr("TiedLayerSpec"));
  EXPECT_THAT(
      refusal({{"embedding", trained(values)}, {"other", trained(torch::zeros({3}))}, {"head", trained(values)}}),
      names_both);
  EXPECT_THAT(refusal({{"embedding", trained(values)}, {"head", trained(values.t())}}), names_both);
  EXPECT_THAT(refusal({{"head", trained(values[5])}, {"embedding", trained(values)}}), names_both);
  EXPECT_THAT(refusal({{"embedding", trained(values)}, {"head", values.narrow(0, 2, 2)}}), names_both)
      << "a buffer that shows a part";
}

TEST(SharedMemoryTest, WhatStaysTogetherIsFine) {
  const at::Tensor values = torch::zeros({6, 4});
  const at::Tensor one = trained(values);
  EXPECT_EQ(refusal({{"embedding", one}, {"head", one}}), "") << "one tensor under two names is tied";
  EXPECT_EQ(refusal({{"a", trained(values.narrow(0, 0, 3))}, {"b", trained(values.narrow(0, 3, 3))}}), "")
      << "parts of one flat buffer";
  EXPECT_EQ(refusal({{"a", values}, {"b", values.detach()}}), "") << "nothing is trained";
  EXPECT_EQ(refusal({{"a", trained(torch::zeros({0}))}, {"b", trained(torch::zeros({0}))}}), "");
}

} // namespace
} // namespace trireme::bucket
