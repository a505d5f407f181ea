// The table of what GPUs can compute: which row a name finds, and that rows are plausible.
#include <trireme/device/card_peaks.h>

#include <gmock/gmock.h>

#include <cmath>

namespace trireme::device {
namespace {

double half_tera(std::string_view name) {
  const auto peak = peak_of_card(name);
  return peak ? peak->half / 1e12 : 0;
}

TEST(CardPeaksTest, FindsTheRowOfAName) {
  EXPECT_EQ(half_tera("NVIDIA H100 80GB HBM3"), 989.4);
  EXPECT_EQ(half_tera("NVIDIA H100 PCIe"), 756);
  EXPECT_EQ(half_tera("NVIDIA H100 NVL"), 835.5);
  EXPECT_EQ(half_tera("NVIDIA H200"), 989.4);
  EXPECT_EQ(half_tera("NVIDIA GH200 480GB"), 989.4);
  EXPECT_EQ(half_tera("NVIDIA B200"), 2250);
  EXPECT_EQ(half_tera("NVIDIA A100-SXM4-80GB"), 312);
  EXPECT_EQ(half_tera("NVIDIA A10"), 125);
  EXPECT_EQ(half_tera("NVIDIA GeForce RTX 4090"), 165.2);
}

TEST(CardPeaksTest, UnknownNamesHaveNone) {
  for (const char* name : {"", "-", "NVIDIA", "NVIDIA A10G", "NVIDIA H1000", "RTX", "a GPU that does not respond",
                           "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "Tesla T4"}) {
    EXPECT_FALSE(peak_of_card(name)) << name;
  }
}

TEST(CardPeaksTest, NarrowerTypesAreFaster) {
  for (const char* name : {"GB200", "B200",      "GH200", "H200 NVL",  "H200",     "H100 NVL", "H100 PCIe",
                           "H100",  "H800 PCIe", "H800",  "H20",       "A100",     "A800",     "A30",
                           "A10",   "L40S",      "L4",    "RTX A6000", "RTX 5090", "RTX 4090", "RTX 3090"}) {
    const auto peak = peak_of_card(name);
    ASSERT_TRUE(peak) << name;
    EXPECT_EQ(peak->name, name) << "an earlier row hides it";
    EXPECT_GE(peak->of(ProductType::tf32), peak->of(ProductType::fp32)) << name;
    EXPECT_NEAR(peak->of(ProductType::half) / peak->of(ProductType::tf32), 2, 0.05) << name;
    const double fp8 = peak->of(ProductType::fp8);
    EXPECT_TRUE(fp8 == 0 || std::abs(fp8 / peak->of(ProductType::half) - 2) < 0.05) << name;
  }
}

} // namespace
} // namespace trireme::device
