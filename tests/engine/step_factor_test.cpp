// What host and device compute of loss and norm is the same to the bit, so that a step does not depend on where it was
// decided.
#include <trireme/engine/step_factor.h>

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

namespace trireme::engine {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor on_device(double value) {
  return torch::full({1}, value, torch::kFloat64);
}

void expect_same_bits(double host, const at::Tensor& device) {
  const auto value = device.item<double>();
  EXPECT_TRUE(std::isnan(host) ? std::isnan(value) : std::memcmp(&host, &value, sizeof host) == 0)
      << host << " and " << value;
}

TEST(StepFactorTest, HostAndDeviceRoundAlike) {
  for (const double loss : {0.0, 0.1, 2.302585092994046, 1e30, kInfinity, kNan}) {
    expect_same_bits(mean_over_ranks(loss, 3), mean_over_ranks(on_device(loss), 3).to(torch::kFloat64));
    for (const double squared : {0.0, 1e-12, 0.3, 7.1, 1e40, kInfinity, kNan}) {
      for (const double unscale : {1.0, 1.0 / 3, 1.0 / (7 * 65536.0)}) {
        for (const double clipping : {0.0, 0.7, 1e9}) {
          for (const bool has_norm : {false, true}) {
            const auto host = step_factor(loss, squared, has_norm, unscale, clipping);
            const auto device = step_factor(on_device(loss), on_device(squared), has_norm, unscale, clipping);
            EXPECT_EQ(host.finite, device.finite.item<bool>()) << loss << ' ' << squared;
            expect_same_bits(host.norm, device.norm);
            if (host.finite) {
              expect_same_bits(host.factor, device.factor);
            }
          }
        }
      }
    }
  }
}

TEST(StepFactorTest, ClipsToTheNorm) {
  const auto clipped = step_factor(0.5, 16.0, true, 0.5, 1.0); // a norm of 2
  EXPECT_EQ(clipped.norm, 2);
  EXPECT_EQ(clipped.factor, 0.5 * (1.0 / (2 + 1e-6)));
  EXPECT_EQ(step_factor(0.5, 16.0, true, 0.5, 3.0).factor, 0.5);
  EXPECT_EQ(step_factor(0.5, 16.0, true, 0.5, 0.0).factor, 0.5);
  EXPECT_FALSE(step_factor(0.5, kNan, true, 0.5, 1.0).finite);
  EXPECT_TRUE(step_factor(0.5, kNan, false, 0.5, 1.0).finite);
  EXPECT_EQ(mean_over_ranks(1.0, 3), static_cast<double>(1.0F / 3.0F));
}

} // namespace
} // namespace trireme::engine
