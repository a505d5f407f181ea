#include <trireme/extensions/compress/compressors/compressed_all_reduce.h>

#include <trireme/base/error.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <tuple>

namespace trireme::comm {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<int64_t> kSizes = {1, 7, 64, 1000, 10007, 70000};

class CompressedTest : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  static std::vector<std::string> run(const std::function<void(const Group&)>& body) {
    test::RunOptions options;
    options.backend = std::get<0>(GetParam());
    return test::run_ranks(std::get<1>(GetParam()), [&](World& world) { body(world.group()); }, options);
  }
};

at::Tensor of_all_ranks(const Group& group, const at::Tensor& x) {
  const at::Tensor all = torch::empty({group.size(), x.numel()}, x.options());
  group.all_gather(all.view(-1), x).wait();
  return all;
}

// The mean of what the ranks have, and their errors added to it, in double.
at::Tensor true_mean(const Group& group, const at::Tensor& x) {
  return of_all_ranks(group, x).to(torch::kDouble).mean(0);
}

at::Tensor what_is_missing(const Group& group, const CompressedAllReduce& reduce, const ErrorFeedback& errors) {
  at::Tensor missing = true_mean(group, errors.worker);
  at::Tensor server = torch::zeros_like(errors.worker);
  server.slice(0, reduce.mine().begin, reduce.mine().end).copy_(errors.server);
  group.all_reduce(server).wait();
  return missing + server.to(torch::kDouble);
}

void expect_exact(const Group& group, const std::shared_ptr<const Compressor>& compressor, const at::Tensor& x,
                  const at::Tensor& wanted) {
  CompressedAllReduce reduce(group, compressor, x.numel());
  const ErrorFeedback errors = reduce.no_errors(torch::kCPU);
  for (int round = 0; round < 2; ++round) {
    const at::Tensor mean = x.clone();
    reduce.run(mean, errors);
    EXPECT_TRUE(mean.equal(wanted)) << compressor->name() << " of " << x.numel() << " elements, round " << round;
    EXPECT_TRUE(errors.worker.eq(0).all().item<bool>())
        << compressor->name() << " of " << x.numel() << " elements, round " << round;
    EXPECT_TRUE(errors.server.eq(0).all().item<bool>())
        << compressor->name() << " of " << x.numel() << " elements, round " << round;
  }
}

// Rank r has +-(r + 1) s, so that the mean is +-(N + 1) s / 2.
TEST_P(CompressedTest, SignsOfOneMagnitudeArriveExactly) {
  EXPECT_THAT(run([](const Group& group) {
                for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
                  for (const int64_t numel : kSizes) {
                    torch::manual_seed(static_cast<uint64_t>(numel));
                    const at::Tensor signs = torch::randint(0, 2, {numel}, torch::kFloat) * 2 - 1;
                    expect_exact(group, sign_compressor(), (signs * 0.375 * (group.rank() + 1)).to(type),
                                 (signs * 0.1875 * (group.size() + 1)).to(type));
                  }
                }
              }),
              IsEmpty());
}

TEST_P(CompressedTest, FewNumbersOtherThanZeroArriveExactly) {
  EXPECT_THAT(run([](const Group& group) {
                for (const int64_t numel : kSizes) {
                  const at::Tensor x = torch::zeros({numel});
                  for (int64_t i = 0; i < numel; i += 51) {
                    x[i] = static_cast<double>(i % 7 - 3) * group.size();
                  }
                  expect_exact(group, top_k_compressor(0.1), x * (group.rank() + 1), x * (group.size() + 1) / 2);
                }
              }),
              IsEmpty());
}

TEST_P(CompressedTest, NumbersOfEightBitsArriveExactly) {
  EXPECT_THAT(run([](const Group& group) {
                for (const int64_t numel : kSizes) {
                  torch::manual_seed(static_cast<uint64_t>(numel));
                  CompressedAllReduce once(group, eight_bit_compressor(), numel);
                  const at::Tensor x = torch::randn({numel}).clamp(-1, 1);
                  for (int64_t i = 0; i < numel; i += 16) {
                    x[i] = 1; // a scale of 1, so that three times a level is exact
                  }
                  once.run(x, once.no_errors(torch::kCPU));
                  expect_exact(group, eight_bit_compressor(), x, x);
                }
              }),
              IsEmpty());
}

TEST_P(CompressedTest, TheSumOfAllRoundsIsThatOfTheMeansButForTheErrors) {
  EXPECT_THAT(
      run([](const Group& group) {
        for (const auto& compressor : {sign_compressor(), eight_bit_compressor(), top_k_compressor(0.2)}) {
          for (const int64_t numel : {int64_t{45}, int64_t{10007}}) {
            CompressedAllReduce reduce(group, compressor, numel);
            const ErrorFeedback errors = reduce.no_errors(torch::kCPU);
            at::Tensor came = torch::zeros({numel}, torch::kDouble), sum = torch::zeros({numel}, torch::kDouble);
            for (int round = 0; round < 30; ++round) {
              torch::manual_seed(static_cast<uint64_t>(100 * round + group.rank()));
              const at::Tensor x = torch::randn({numel}) + 0.5;
              sum += true_mean(group, x);
              const at::Tensor mean = x.clone();
              reduce.run(mean, errors, "numbers");
              came += mean;
              const at::Tensor all = of_all_ranks(group, mean);
              EXPECT_TRUE(all.eq(mean).all().item<bool>())
                  << compressor->name() << ": the ranks have different means, round " << round;
            }
            EXPECT_TRUE(torch::allclose(came + what_is_missing(group, reduce, errors), sum, 1e-5, 1e-4))
                << compressor->name() << " of " << numel;
            // The errors do not grow: what is missing is a few rounds' worth, of 30.
            EXPECT_LT(what_is_missing(group, reduce, errors).norm().item<double>(), 0.6 * sum.norm().item<double>())
                << compressor->name() << " of " << numel;
          }
        }
      }),
      IsEmpty());
}

// The largest whole numbers travel, the others stay: nothing is rounded.
TEST_P(CompressedTest, ForWholeNumbersTheEquationIsExact) {
  EXPECT_THAT(run([](const Group& group) {
                constexpr int64_t kWhole = 5003;
                CompressedAllReduce reduce(group, top_k_compressor(0.1), kWhole);
                const ErrorFeedback errors = reduce.no_errors(torch::kCPU);
                at::Tensor came = torch::zeros({kWhole}, torch::kDouble), sum = torch::zeros({kWhole}, torch::kDouble);
                for (int round = 0; round < 10; ++round) {
                  torch::manual_seed(static_cast<uint64_t>(100 * round + group.rank()));
                  const at::Tensor x = torch::randint(-50, 50, {kWhole}, torch::kFloat) * group.size();
                  sum += true_mean(group, x);
                  reduce.run(x, errors);
                  came += x;
                }
                EXPECT_TRUE(sum.equal(came + what_is_missing(group, reduce, errors)));
                EXPECT_EQ(errors.worker.eq(0).all().item<bool>(), group.size() == 1);
              }),
              IsEmpty());
}

TEST_P(CompressedTest, BytesAreTheClosedForm) {
  EXPECT_THAT(run([](const Group& group) {
                const int64_t ranks = group.size();
                const int64_t numel = ranks * 16 * 1000 - 5; // the last range is 5 shorter
                const int64_t stretches = (16000 + kLongestStretch - 1) / kLongestStretch;
                const auto bytes = [&](const std::shared_ptr<const Compressor>& compressor, int64_t of_a_range) {
                  CompressedAllReduce reduce(group, compressor, numel);
                  const at::Tensor x = torch::ones({numel});
                  const ErrorFeedback errors = reduce.no_errors(torch::kCPU);
                  const int64_t before = group.bytes_sent();
                  reduce.run(x, errors);
                  EXPECT_EQ(group.bytes_sent() - before, 2 * (ranks - 1) * of_a_range) << compressor->name();
                };
                const int64_t sign_bytes = 4 * stretches + 2000;
                bytes(sign_compressor(), sign_bytes);
                bytes(eight_bit_compressor(), (4 * 63 + 16000 + 15) / 16 * 16);
                bytes(top_k_compressor(0.01), (6 * (7 * 21 + 17) + 15) / 16 * 16);
                const double plain =
                    2.0 * 4 * static_cast<double>(numel) / static_cast<double>(ranks); // to each other rank
                EXPECT_GT(plain / static_cast<double>(2 * sign_bytes), 31.4);
              }),
              IsEmpty());
}

TEST_P(CompressedTest, WhatIsInNoStretchStaysOut) {
  EXPECT_THAT(run([](const Group& group) {
                constexpr int64_t kWhole = 4000;
                CompressedAllReduce reduce(group, sign_compressor(), kWhole, {{0, 100}, {160, 3000}, {3000, 3001}});
                const ErrorFeedback errors = reduce.no_errors(torch::kCPU);
                for (int round = 0; round < 3; ++round) {
                  const at::Tensor x = torch::randn({kWhole});
                  x.slice(0, 100, 160).zero_();
                  x.slice(0, 3001).zero_();
                  reduce.run(x, errors);
                  for (const at::Tensor& part : {x, errors.worker}) {
                    EXPECT_TRUE(part.slice(0, 100, 160).eq(0).all().item<bool>());
                    EXPECT_TRUE(part.slice(0, 3001).eq(0).all().item<bool>());
                  }
                  EXPECT_TRUE(x.slice(0, 0, 100).ne(0).all().item<bool>());
                  EXPECT_TRUE(x.slice(0, 160, 3001).ne(0).all().item<bool>());
                }
              }),
              IsEmpty());
}

// The algorithm by the compressor's own operations on whole ranges: what run() makes of `x`.
at::Tensor by_hand(const Group& group, const Compressor& compressor, const std::vector<Stretch>& wanted,
                   const at::Tensor& x, const ErrorFeedback& errors) {
  const int64_t each = ((x.numel() + group.size() - 1) / group.size() + 15) / 16 * 16;
  std::vector<Stretch> ranges;
  std::vector<std::vector<Stretch>> stretches;
  std::vector<int64_t> at = {0};
  for (int rank = 0; rank < group.size(); ++rank) {
    ranges.push_back({std::min(rank * each, x.numel()), std::min((rank + 1) * each, x.numel())});
    stretches.push_back(cut(wanted, ranges.back()));
    at.push_back(at.back() + (compressor.message_bytes(stretches.back()) + 3) / 4 * 4);
  }
  const auto range = [&](const at::Tensor& of, int rank) { return of.slice(0, ranges[rank].begin, ranges[rank].end); };
  const auto message = [&](const at::Tensor& of, int rank) {
    return of.slice(0, at[rank], at[rank] + compressor.message_bytes(stretches[rank]));
  };
  errors.worker.add_(x);
  const at::Tensor sent = torch::zeros({at.back()}, torch::kByte);
  for (int rank = 0; rank < group.size(); ++rank) {
    compressor.compress(range(errors.worker, rank), stretches[rank], message(sent, rank));
  }
  const at::Tensor came = of_all_ranks(group, sent);
  at::Tensor sum = torch::zeros_like(errors.server);
  for (int rank = 0; rank < group.size(); ++rank) {
    compressor.add(message(came[rank], group.rank()), stretches[group.rank()], sum);
  }
  errors.server.add_(sum / group.size());
  const at::Tensor mean = torch::zeros({at.back()}, torch::kByte);
  compressor.compress(errors.server, stretches[group.rank()], message(mean, group.rank()));
  const at::Tensor means = of_all_ranks(group, mean);
  at::Tensor out = torch::zeros_like(x);
  for (int rank = 0; rank < group.size(); ++rank) {
    compressor.add(message(means[rank], rank), stretches[rank], range(out, rank));
  }
  return out;
}

// Numbers and means that are never a tensor, and such that are, equal the algorithm to the bit.
TEST_P(CompressedTest, AStretchAtATimeIsTheSameToTheBit) {
  EXPECT_THAT(run([](const Group& group) {
                if (group.size() == 1) {
                  return; // nothing is compressed
                }
                constexpr int64_t kWhole = 20'000;
                const std::vector<Stretch> wanted = {{0, 100}, {160, 9000}, {9000, 9001}, {9005, kWhole - 3}};
                for (const auto& compressor : {sign_compressor(), eight_bit_compressor()}) {
                  CompressedAllReduce by_functions(group, compressor, kWhole, wanted),
                      by_tensors(group, compressor, kWhole, wanted);
                  ASSERT_TRUE(by_functions.by_stretches(torch::kCPU));
                  const ErrorFeedback errors = by_functions.no_errors(torch::kCPU),
                                      of_tensors = by_functions.no_errors(torch::kCPU),
                                      of_hand = by_functions.no_errors(torch::kCPU);
                  for (int round = 0; round < 4; ++round) {
                    torch::manual_seed(static_cast<uint64_t>(100 * round + group.rank()));
                    const at::Tensor x = torch::zeros({kWhole});
                    for (const Stretch& one : wanted) {
                      x.slice(0, one.begin, one.end).copy_(torch::randn({one.count()}));
                    }
                    const at::Tensor expected = by_hand(group, *compressor, wanted, x, of_hand);
                    const at::Tensor found = torch::zeros({kWhole}), tensor = x.clone();
                    const auto* const numbers = x.const_data_ptr<float>();
                    by_functions.start(
                        [&](int64_t begin, int64_t end, float* to) {
                          std::transform(numbers + begin, numbers + end, to, to, std::plus<>());
                        },
                        errors);
                    by_functions.turn(errors);
                    by_functions.finish([&](int64_t begin, int64_t end, const float* means) {
                      std::copy_n(means, end - begin, found.mutable_data_ptr<float>() + begin);
                    });
                    by_tensors.run(tensor, of_tensors);
                    for (const auto& [name, result, own] :
                         {std::tuple("functions", found, errors), std::tuple("tensors", tensor, of_tensors)}) {
                      EXPECT_TRUE(result.equal(expected))
                          << compressor->name() << " by " << name << ", round " << round;
                      EXPECT_TRUE(own.worker.equal(of_hand.worker))
                          << compressor->name() << " by " << name << ", round " << round;
                      EXPECT_TRUE(own.server.equal(of_hand.server))
                          << compressor->name() << " by " << name << ", round " << round;
                    }
                  }
                }
                EXPECT_FALSE(CompressedAllReduce(group, top_k_compressor(0.1), kWhole).by_stretches(torch::kCPU));
              }),
              IsEmpty());
}

// The steps of several rounds one between the other, as buckets take them.
TEST_P(CompressedTest, RoundsUnderWayAtOnceEqualThoseOneByOne) {
  EXPECT_THAT(run([](const Group& group) {
                torch::manual_seed(static_cast<uint64_t>(group.rank()));
                const std::vector<at::Tensor> x = {torch::randn({1000}), torch::randn({333})};
                std::vector<at::Tensor> alone, together;
                for (const at::Tensor& one : x) {
                  CompressedAllReduce reduce(group, sign_compressor(), one.numel());
                  alone.push_back(one.clone());
                  reduce.run(alone.back(), reduce.no_errors(torch::kCPU));
                }
                CompressedAllReduce first(group, sign_compressor(), 1000), second(group, sign_compressor(), 333);
                const ErrorFeedback of_first = first.no_errors(torch::kCPU), of_second = second.no_errors(torch::kCPU);
                first.start(x[0], of_first, "first");
                second.start(x[1], of_second, "second");
                first.turn(of_first);
                second.turn(of_second);
                for (CompressedAllReduce* const one : {&first, &second}) {
                  together.push_back(torch::empty_like(x[together.size()]));
                  one->finish(together.back());
                }
                EXPECT_TRUE(together[0].equal(alone[0]));
                EXPECT_TRUE(together[1].equal(alone[1]));
              }),
              IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Backends, CompressedTest,
                         testing::Combine(testing::Values("shm", "gloo"), testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), std::get<1>(info.param), "Ranks");
                         });

TEST(CompressedErrorTest, ShapesAndStretchesAreChecked) {
  const Group alone;
  const auto make = [&](std::vector<Stretch> stretches) {
    CompressedAllReduce(alone, sign_compressor(), 100, std::move(stretches));
  };
  EXPECT_THAT(test::error_of([&] { make({{0, 10}, {5, 20}}); }),
              HasSubstr("the stretch [5, 20) leaves them or overlaps"));
  EXPECT_THAT(test::error_of([&] { make({{90, 101}}); }), HasSubstr("the stretch [90, 101) leaves them"));
  CompressedAllReduce reduce(alone, sign_compressor(), 100);
  const ErrorFeedback errors = reduce.no_errors(torch::kCPU);
  EXPECT_THAT(test::error_of([&] { reduce.run(torch::zeros({99}), errors); }),
              HasSubstr("expected 100 contiguous elements"));
  EXPECT_THAT(test::error_of([&] { reduce.run(torch::zeros({100}, torch::kHalf), errors); }),
              HasSubstr("fp32 or bf16"));
  EXPECT_THAT(test::error_of([&] { reduce.run(torch::zeros({100}), {}); }),
              HasSubstr("the errors do not belong to it"));
}

} // namespace
} // namespace trireme::comm
