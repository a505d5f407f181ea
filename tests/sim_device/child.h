// What the tests of the simulated device itself share.
#pragma once

#include "sim_device.h"

#include <tests/support/run_ranks.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/utils.h>

#include <gmock/gmock.h>

namespace trireme::sim {

// One device a process, so each test runs in a child.
inline void in_a_child(const std::function<void()>& body) {
  EXPECT_THAT(test::run_processes(1,
                                  [&](int) {
                                    start(2);
                                    body();
                                  }),
              testing::IsEmpty());
}

inline c10::impl::VirtualGuardImpl guard() {
  return c10::impl::VirtualGuardImpl(c10::kPrivateUse1);
}
inline c10::Stream another_stream() {
  return guard().getNewStream(device());
}
inline at::TensorOptions there() {
  return at::TensorOptions(at::kFloat).device(device());
}
inline at::Tensor pinned(const std::vector<float>& values) {
  const at::Tensor tensor = torch::empty({std::ssize(values)}, at::TensorOptions(at::kFloat).pinned_memory(true));
  tensor.copy_(torch::tensor(values));
  return tensor;
}

} // namespace trireme::sim
