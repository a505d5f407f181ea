// Optimizers find their kernels by the device that the shard is on.
#include <trireme/optim/device_kernels.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>

#include <gmock/gmock.h>

namespace trireme::optim {
namespace {

using testing::HasSubstr;

ShardStep shard_on(at::DeviceType device, int64_t states) {
  const at::Tensor empty = at::empty({0}, at::TensorOptions(at::kFloat).device(device));
  ShardStep shard;
  shard.param = empty;
  shard.grad = empty;
  shard.states.assign(states, empty);
  return shard;
}

int calls = 0;

TEST(DeviceKernelsTest, ADeviceBringsItsOwn) {
  const auto adam = make_optimizer({});
  try {
    adam->step(shard_on(at::kMeta, 2));
    FAIL() << "there are none for this device";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no optimizer kernels for tensors on meta"));
  }
  DeviceKernels counting{};
  counting.adam = [](const kernels::AdamArgs&, int64_t) { ++calls; };
  counting.squared_norm = [](const void*, kernels::Element, int64_t) { return 42.0; };
  register_kernels(at::kMeta, counting);
  adam->step(shard_on(at::kMeta, 2));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(squared_norm(shard_on(at::kMeta, 0).grad), 42.0);
  adam->step(shard_on(at::kCPU, 2));
  EXPECT_EQ(calls, 1);
}

TEST(DeviceKernelsTest, AShardIsOnOneDevice) {
  ShardStep shard = shard_on(at::kCPU, 2);
  shard.grad = shard_on(at::kMeta, 0).grad;
  try {
    make_optimizer({})->step(shard);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("adamw: grad must be a contiguous fp32 or bf16 or fp16 array [n] on cpu, got Float [0] on meta"));
  }
}

} // namespace
} // namespace trireme::optim
