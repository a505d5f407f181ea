// What `trireme doctor` tries on each device, on the simulated one.
#include "sim_device.h"

#include <tests/support/run_ranks.h>

#include <tools/trireme/device_check.h>

#include <trireme/base/error.h>
#include <trireme/optim/device_kernels.h>

#include <torch/types.h>

#include <gmock/gmock.h>

#include <functional>
#include <map>

namespace trireme::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::map<std::string, DeviceFinding> findings() {
  std::map<std::string, DeviceFinding> found;
  for (const DeviceFinding& one : check_device(sim::device())) {
    found[one.what] = one;
  }
  EXPECT_EQ(found.size(), 8U);
  return found;
}

const optim::DeviceKernels& good() {
  static const optim::DeviceKernels* const kernels = [] {
    sim::use_cpu_optimizer_kernels();
    return &optim::kernels_for(torch::empty({1}, at::TensorOptions(sim::device())));
  }();
  return *kernels;
}

// `change` breaks some of the device's kernels.
std::map<std::string, DeviceFinding> findings_with(const std::function<void(optim::DeviceKernels&)>& change) {
  static optim::DeviceKernels broken;
  broken = good();
  change(broken);
  optim::register_kernels(c10::kPrivateUse1, broken);
  return findings();
}

void in_a_process(const std::function<void()>& body) {
  test::on_ranks(1, [&](comm::World&) {
    sim::start();
    body();
  });
}

TEST(SimDeviceDoctor, EveryOptimizerStepsInEveryType) {
  in_a_process([] {
    for (const bool own : {false, true}) {
      if (own) {
        sim::use_cpu_optimizer_kernels();
      }
      for (const auto& [what, one] : findings()) {
        EXPECT_TRUE(one.good) << what << ": " << one.found;
        if (what.starts_with("norm")) {
          EXPECT_THAT(one.found, HasSubstr("fp32, bf16, fp16"));
        } else if (!what.starts_with("copies")) {
          EXPECT_THAT(one.found, HasSubstr("fp32, bf16 with masters, fp16 with masters, states in bf16"));
          EXPECT_EQ(one.found.ends_with("states in 8 bits"), own && !what.starts_with("lamb"))
              << what << ": " << one.found;
        }
      }
    }
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

TEST(SimDeviceDoctor, AKernelThatIsWrongIsNamedWithTheType) {
  in_a_process([] {
    auto found = findings_with([](optim::DeviceKernels& kernels) {
      kernels.sgd = [](const kernels::SgdArgs&, std::span<const optim::Segment>, at::Device) {};
      kernels.adagrad = [](const kernels::AdagradArgs& args, std::span<const optim::Segment> segments,
                           at::Device device) {
        if (args.sum.type != kernels::Element::bf16) {
          good().adagrad(args, segments, device);
        }
      };
      kernels.lion = [](const kernels::LionArgs& args, std::span<const optim::Segment> segments, at::Device device) {
        kernels::LionArgs other = args;
        other.grad_scale *= args.grad_type == kernels::Element::bf16 ? -1 : 1;
        good().lion(other, segments, device);
      };
      kernels.rmsprop = [](const kernels::RmspropArgs& args, std::span<const optim::Segment> segments,
                           at::Device device) {
        kernels::RmspropArgs other = args;
        other.param_copy = nullptr;
        good().rmsprop(other, segments, device);
      };
      kernels.encode_states = [](const kernels::StateArray&, bool, int64_t, const float*, at::Device) {
        throw Error("test", "no such kernel image");
      };
      kernels.add_squared_norm = [](const void* x, kernels::Element type, int64_t n, double* sum, at::Device device) {
        good().add_squared_norm(x, type, type == kernels::Element::f16 ? n - 1 : n, sum, device);
      };
    });
    EXPECT_TRUE(found["copies to sim:0"].good);
    EXPECT_THAT(found["sgd on sim:0"].found, HasSubstr("fp32: differs from the CPU by "));
    EXPECT_THAT(found["adagrad on sim:0"].found,
                AllOf(HasSubstr("states in bf16: differs from the CPU by "), HasSubstr(" on average")));
    EXPECT_THAT(found["lion on sim:0"].found, HasSubstr("bf16 with masters: differs from the CPU by "));
    EXPECT_THAT(found["rmsprop on sim:0"].found,
                HasSubstr("bf16 with masters: the copy of the parameters differs from the rounded masters"));
    EXPECT_THAT(found["adamw on sim:0"].found,
                AllOf(HasSubstr("states in 8 bits: "), HasSubstr("no such kernel image")));
    EXPECT_THAT(found["norm on sim:0"].found, HasSubstr("of type Half"));
    for (const char* bad : {"sgd", "adagrad", "lion", "rmsprop", "adamw", "norm"}) {
      EXPECT_FALSE(found[std::string(bad) + " on sim:0"].good) << bad;
    }
  });
}

// A card that cannot compute must not end the doctor before it has listed the cards.
TEST(SimDeviceDoctor, ADeviceThatFailsIsAFinding) {
  in_a_process([] {
    const DeviceFinding works = check_bf16(sim::device());
    EXPECT_TRUE(works.good) << works.found;
    EXPECT_THAT(works.found, AllOf(HasSubstr("faster than fp32: a small step takes "), HasSubstr(" on sim:0")));
    const at::Device absent(at::kCUDA, 127);
    const DeviceFinding fails = check_bf16(absent);
    EXPECT_FALSE(fails.good);
    EXPECT_THAT(fails.found, HasSubstr("no small model can be trained on cuda:127: "));
    for (const DeviceFinding& one : check_device(absent)) {
      EXPECT_FALSE(one.good) << one.what;
      EXPECT_THAT(one.found, Not(IsEmpty()));
    }
  });
}

} // namespace
} // namespace trireme::tools
