#include <trireme/extensions/compress/compressors/compressor.h>

#include <trireme/base/error.h>

#include <torch/utils.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Of many lengths: one element, less than a byte of signs, one more than a block of 8-bit codes, the longest; with a
// gap of 9 elements after the second.
const std::vector<Stretch>& some_stretches() {
  static const std::vector<Stretch> stretches = {
      {0, 1}, {1, 8}, {17, 17 + 257}, {274, 274 + 2048}, {2322, 2322 + 2048}, {4370, 4370 + 100}};
  return stretches;
}
constexpr int64_t kNumel = 4470;

at::Tensor random_numbers(int seed) {
  torch::manual_seed(seed);
  return torch::randn({kNumel}) * torch::logspace(-3, 2, kNumel);
}

struct Sent {
  at::Tensor message;
  at::Tensor rest;
  at::Tensor arrived;
};

Sent send(const Compressor& compressor, const at::Tensor& x) {
  Sent sent{torch::zeros({compressor.message_bytes(some_stretches())}, torch::kByte), x.clone(), torch::zeros_like(x)};
  compressor.compress(sent.rest, some_stretches(), sent.message);
  compressor.add(sent.message, some_stretches(), sent.arrived);
  return sent;
}

TEST(CutTest, StretchesEndWithTheirRangeAndAreNotTooLong) {
  const std::vector<Stretch> wanted = {{0, 10}, {12, 5000}, {5000, 5001}};
  EXPECT_THAT(cut(wanted, {0, 5}), ElementsAre(Stretch{0, 5}));
  EXPECT_THAT(cut(wanted, {8, 4500}),
              ElementsAre(Stretch{0, 2}, Stretch{4, 2052}, Stretch{2052, 4100}, Stretch{4100, 4492}));
  EXPECT_THAT(cut(wanted, {4500, 6000}), ElementsAre(Stretch{0, 500}, Stretch{500, 501}));
  EXPECT_THAT(cut(wanted, {10, 12}), ElementsAre());
}

class CompressorTest : public testing::TestWithParam<std::shared_ptr<const Compressor>> {
 protected:
  static const Compressor& compressor() { return *GetParam(); }
};

TEST_P(CompressorTest, WhatArrivesAndTheErrorAddUpToTheNumbers) {
  const at::Tensor x = random_numbers(3);
  const Sent sent = send(compressor(), x);
  EXPECT_TRUE(torch::allclose(sent.arrived + sent.rest, x, 1e-6, 2e-5));
}

TEST_P(CompressorTest, ElementsInNoStretchAreNotTouched) {
  const at::Tensor x = random_numbers(4);
  const Sent sent = send(compressor(), x);
  EXPECT_TRUE(sent.rest.slice(0, 8, 17).equal(x.slice(0, 8, 17)));
  EXPECT_TRUE(sent.arrived.slice(0, 8, 17).eq(0).all().item<bool>());
}

TEST_P(CompressorTest, WhatArrivedArrivesExactly) {
  const at::Tensor once = send(compressor(), random_numbers(5)).arrived;
  const Sent again = send(compressor(), once);
  EXPECT_TRUE(again.arrived.equal(once));
  EXPECT_TRUE(again.rest.eq(0).all().item<bool>());
}

TEST_P(CompressorTest, AddAdds) {
  const Sent sent = send(compressor(), random_numbers(6));
  const at::Tensor sum = torch::ones({kNumel});
  compressor().add(sent.message, some_stretches(), sum);
  EXPECT_TRUE(sum.equal(sent.arrived + 1));
}

TEST_P(CompressorTest, ManyThreadsGiveTheSameBits) {
  const at::Tensor x = random_numbers(7);
  const int before = torch::get_num_threads();
  torch::set_num_threads(1);
  const Sent one = send(compressor(), x);
  torch::set_num_threads(3);
  const Sent three = send(compressor(), x);
  torch::set_num_threads(before);
  EXPECT_TRUE(one.message.equal(three.message));
  EXPECT_TRUE(one.rest.equal(three.rest));
}

INSTANTIATE_TEST_SUITE_P(All, CompressorTest,
                         testing::Values(sign_compressor(), eight_bit_compressor(), top_k_compressor(0.1)),
                         [](const auto& info) {
                           return std::string(info.index == 0 ? "sign" : info.index == 1 ? "eight_bit" : "top_k");
                         });

TEST(SignCompressorTest, IsTheSignTimesTheRootOfTheMeanSquareOfEachStretch) {
  at::Tensor x = random_numbers(8);
  x[20] = -0.0;
  const Sent sent = send(*sign_compressor(), x);
  for (const Stretch& stretch : some_stretches()) {
    const at::Tensor part = x.slice(0, stretch.begin, stretch.end);
    const at::Tensor scale = part.to(torch::kDouble).square().mean().sqrt().to(torch::kFloat);
    EXPECT_TRUE(torch::allclose(sent.arrived.slice(0, stretch.begin, stretch.end),
                                torch::where(part.ge(0), scale, -scale), 3e-7, 0))
        << stretch.begin;
  }
  EXPECT_GT(sent.arrived[20].item<float>(), 0);
  EXPECT_EQ(sign_compressor()->message_bytes(some_stretches()), 6 * 4 + 1 + 1 + 33 + 256 + 256 + 13);
}

TEST(EightBitCompressorTest, IsWithinHalfALevel) {
  const at::Tensor x = random_numbers(9);
  const Sent sent = send(*eight_bit_compressor(), x);
  for (const Stretch& stretch : some_stretches()) {
    for (int64_t begin = stretch.begin; begin < stretch.end; begin += 256) {
      const int64_t end = std::min(begin + 256, stretch.end);
      const double largest = x.slice(0, begin, end).abs().max().item<double>();
      // 64 levels from 1/8 to 1, so that half of the distance is 7/1024.
      EXPECT_LE(sent.rest.slice(0, begin, end).abs().max().item<double>(), largest * 7 / 1024 * 1.0001) << begin;
      EXPECT_EQ(sent.arrived.slice(0, begin, end).abs().max().item<double>(), largest) << begin;
    }
  }
  EXPECT_EQ(eight_bit_compressor()->message_bytes(some_stretches()), (1 + 1 + 2 + 8 + 8 + 1) * 4 + (kNumel - 9));
}

TEST(TopKCompressorTest, KeepsTheLargestElementsOfEachStretch) {
  const at::Tensor x = random_numbers(10);
  const auto top = top_k_compressor(0.1);
  const Sent sent = send(*top, x);
  int64_t kept = 0;
  for (const Stretch& stretch : some_stretches()) {
    const at::Tensor part = x.slice(0, stretch.begin, stretch.end);
    const int64_t count = (stretch.count() + 9) / 10;
    kept += count;
    const at::Tensor least = std::get<0>(part.abs().sort(0, /*descending=*/true))[count - 1];
    EXPECT_TRUE(sent.arrived.slice(0, stretch.begin, stretch.end)
                    .equal(torch::where(part.abs().ge(least), part, torch::zeros_like(part))))
        << stretch.begin;
  }
  EXPECT_EQ(top->message_bytes(some_stretches()), 6 * kept);
}

TEST(TopKCompressorTest, SharesOutsideOfZeroToOneAreRefused) {
  for (const double share : {0.0, -1.0, 1.5, std::nan("")}) {
    try {
      top_k_compressor(share);
      FAIL() << share;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("more than 0 and at most 1"));
    }
  }
}

} // namespace
} // namespace trireme::comm
