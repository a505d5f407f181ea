#include <trireme/kernels/simd.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::kernels {
namespace {

TEST(SimdTest, ScalarRunsEverywhereAndActiveIsSupported) {
  EXPECT_TRUE(supported(Simd::scalar));
  EXPECT_TRUE(supported(active_simd()));
}

TEST(SimdTest, ParsesItsOwnNames) {
  for (Simd simd : {Simd::scalar, Simd::avx2, Simd::avx512}) {
    if (supported(simd)) {
      EXPECT_EQ(parse_simd(name(simd)), simd);
    } else {
      EXPECT_THROW(parse_simd(name(simd)), InputError);
    }
  }
}

TEST(SimdTest, UnknownNameListsWhatTheMachineHas) {
  try {
    parse_simd("sse9");
    FAIL() << "parsed";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("TRIREME_SIMD is \"sse9\""));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("scalar."));
  }
}

} // namespace
} // namespace trireme::kernels
