#include <trireme/extensions/compress/compressors/power_sgd.h>

#include <trireme/base/error.h>

#include <tests/support/peer_error.h>
#include <tests/support/run_ranks.h>

#include <torch/utils.h>

#include <gmock/gmock.h>

#include <cmath>

namespace trireme::comm {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class PowerSgdTest : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  static std::vector<std::string> run(const std::function<void(const Group&)>& body) {
    test::RunOptions options;
    options.backend = std::get<0>(GetParam());
    return test::run_ranks(std::get<1>(GetParam()), [&](World& world) { body(world.group()); }, options);
  }
};

// A matrix of 20 x 30, 7 numbers of no matrix, one of 3 x 3 that is too small, one of 64 x 9, 5 more numbers.
const std::vector<FlatMatrix>& some_matrices() {
  static const std::vector<FlatMatrix> matrices = {{0, 20, 30}, {607, 3, 3}, {616, 64, 9}};
  return matrices;
}
constexpr int64_t kAll = 616 + 64 * 9 + 5;

at::Tensor mean_of(const Group& group, const at::Tensor& x) {
  const at::Tensor all = torch::empty({group.size(), x.numel()}, x.options());
  group.all_gather(all.view(-1), x.contiguous()).wait();
  return all.to(torch::kDouble).mean(0).to(x.scalar_type());
}

/// Matrices of so many columns' and rows' products, different on each rank.
at::Tensor of_rank(int64_t rank, uint64_t seed) {
  torch::manual_seed(seed);
  const at::Tensor x = torch::randn({kAll});
  for (const FlatMatrix& matrix : some_matrices()) {
    x.slice(0, matrix.begin, matrix.begin + matrix.numel())
        .copy_(torch::randn({matrix.rows, rank}).matmul(torch::randn({rank, matrix.columns})).view(-1));
  }
  return x;
}

TEST_P(PowerSgdTest, AMeanOfLowRankArrives) {
  EXPECT_THAT(run([](const Group& group) {
                const PowerSgd reduce(group, kAll, some_matrices(), 2);
                PowerSgd::State state = reduce.first_state(torch::kCPU, 5);
                for (uint64_t round = 0; round < 3; ++round) {
                  const at::Tensor x = of_rank(2, round) * (group.rank() + 1); // the mean has rank 2 too
                  const at::Tensor wanted = mean_of(group, x);
                  reduce.run(x, state);
                  const double size = wanted.norm().item<double>();
                  EXPECT_LT((x - wanted).norm().item<double>(), 1e-4 * size) << "round " << round;
                  EXPECT_LT(state.error.norm().item<double>(), 1e-3 * size) << "round " << round;
                }
              }),
              IsEmpty());
}

TEST_P(PowerSgdTest, TheSumOfAllRoundsIsThatOfTheMeansButForTheErrors) {
  EXPECT_THAT(run([](const Group& group) {
                const PowerSgd reduce(group, kAll, some_matrices(), 1);
                PowerSgd::State state = reduce.first_state(torch::kCPU, 5);
                at::Tensor came = torch::zeros({kAll}, torch::kDouble), sum = torch::zeros({kAll}, torch::kDouble);
                for (uint64_t round = 0; round < 30; ++round) {
                  const at::Tensor x = of_rank(9, 100 * round + static_cast<uint64_t>(group.rank()));
                  sum += mean_of(group, x.to(torch::kDouble));
                  reduce.run(x, state, "gradients");
                  came += x;
                  EXPECT_TRUE(mean_of(group, x).equal(x)) << "the ranks have different means, round " << round;
                  EXPECT_TRUE(mean_of(group, state.right).equal(state.right))
                      << "the ranks have different Q, round " << round;
                }
                const at::Tensor missing = mean_of(group, state.error.to(torch::kDouble));
                EXPECT_TRUE(torch::allclose(came + missing, sum, 1e-4, 1e-3))
                    << (came + missing - sum).abs().max().item<double>();
                EXPECT_EQ(missing.abs().max().item<double>() > 1, group.size() > 1);
                EXPECT_TRUE(missing.slice(0, 600, 607).eq(0).all().item<bool>()); // in no matrix
              }),
              IsEmpty());
}

// One step of the power method a round finds the largest directions of a matrix that stays.
TEST_P(PowerSgdTest, ConvergesFromRoundToRound) {
  EXPECT_THAT(run([](const Group& group) {
                torch::manual_seed(1);
                const at::Tensor matrix =
                    std::get<0>(torch::linalg_qr(torch::randn({40, 6})))
                        .matmul(torch::diag(torch::tensor({8.0, 6.0, 1.0, 0.5, 0.2, 0.1}).to(torch::kFloat)))
                        .matmul(std::get<0>(torch::linalg_qr(torch::randn({25, 6}))).t());
                const PowerSgd reduce(group, 1000, {{0, 40, 25}}, 2);
                PowerSgd::State state = reduce.first_state(torch::kCPU, 5);
                double distance = 0;
                for (int round = 0; round < 12; ++round) {
                  const at::Tensor x = matrix.contiguous().view(-1).clone();
                  state.error.zero_();
                  reduce.run(x, state);
                  distance = (x - matrix.view(-1)).norm().item<double>();
                }
                const double best = group.size() == 1 ? 0 : std::sqrt(1 + 0.25 + 0.04 + 0.01); // Eckart and Young
                EXPECT_NEAR(distance, best, 1e-3);
              }),
              IsEmpty());
}

TEST_P(PowerSgdTest, ZerosDoNotLoseTheDirections) {
  EXPECT_THAT(run([](const Group& group) {
                const PowerSgd reduce(group, kAll, some_matrices(), 2);
                PowerSgd::State state = reduce.first_state(torch::kCPU, 5);
                for (int round = 0; round < 2; ++round) {
                  const at::Tensor zeros = torch::zeros({kAll});
                  reduce.run(zeros, state);
                  EXPECT_TRUE(zeros.eq(0).all().item<bool>());
                }
                const at::Tensor x = of_rank(1, 3);
                const at::Tensor wanted = mean_of(group, x);
                reduce.run(x, state);
                EXPECT_TRUE(torch::allclose(x, wanted, 1e-4, 1e-4));
                reduce.run(x, state); // rank 1: one of the two columns depends on the other
                EXPECT_TRUE(x.isfinite().all().item<bool>());
                EXPECT_TRUE(torch::allclose(x, wanted, 1e-4, 1e-3));
              }),
              IsEmpty());
}

TEST_P(PowerSgdTest, BytesAreTheClosedForm) {
  EXPECT_THAT(run([](const Group& group) {
                const PowerSgd reduce(group, kAll, some_matrices(), 2);
                const int64_t first = 2 * 20 + 2 * 64 + 7 + 9 + 5;
                const int64_t second = 2 * 30 + 2 * 9;
                const auto bytes = [&](const std::function<void()>& f) {
                  const int64_t before = group.bytes_sent();
                  f();
                  return group.bytes_sent() - before;
                };
                const at::Tensor x = torch::ones({kAll});
                const PowerSgd::State state = reduce.first_state(torch::kCPU, 5);
                const int64_t wanted = bytes([&] { group.all_reduce(torch::ones({first})).wait(); }) +
                                       bytes([&] { group.all_reduce(torch::ones({second})).wait(); });
                EXPECT_EQ(bytes([&] { reduce.run(x, state); }), wanted);
              }),
              IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Backends, PowerSgdTest,
                         testing::Combine(testing::Values("shm", "gloo"), testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), std::get<1>(info.param), "Ranks");
                         });

TEST(PowerSgdErrorTest, MatricesAndShapesAreChecked) {
  const Group alone;
  EXPECT_THAT(test::error_of([&] { PowerSgd(alone, 100, {{0, 5, 10}, {40, 2, 5}}, 1); }),
              HasSubstr("the matrix of 2 x 5 at 40 leaves them or overlaps"));
  EXPECT_THAT(test::error_of([&] { PowerSgd(alone, 100, {{60, 5, 10}}, 1); }),
              HasSubstr("the matrix of 5 x 10 at 60 leaves them"));
  EXPECT_THAT(test::error_of([&] { PowerSgd(alone, 100, {}, 0); }), HasSubstr("PowerSGD of rank 0"));
  const PowerSgd reduce(alone, 100, {{0, 5, 10}}, 1);
  const PowerSgd::State state = reduce.first_state(torch::kCPU, 1);
  EXPECT_THAT(test::error_of([&] { reduce.run(torch::zeros({99}), state); }),
              HasSubstr("does not fit its 100 contiguous elements"));
  EXPECT_THAT(test::error_of([&] { reduce.run(torch::zeros({100}), {}); }),
              HasSubstr("does not fit its 100 contiguous elements"));
}

} // namespace
} // namespace trireme::comm
