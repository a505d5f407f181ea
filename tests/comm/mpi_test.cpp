#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/comm/backends.h>

#include "tests/comm/group_checks.h"
#include "tests/support/command.h"
#include "tests/support/run_mpi.h"

#include <gmock/gmock.h>

namespace trireme::comm {
namespace {

using test::run_command;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kDemo = "\"" + test::binary_dir() + "/tests/comm/comm_demo\"";

class MpiTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_not_mpi(GetParam()); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }
  std::string demo(int ranks, const std::string& arguments = "") {
    return "timeout -k 5 60 env -u RANK -u WORLD_SIZE TRIREME_BACKEND=mpi TRIREME_TIMEOUT=3 " +
           test::mpirun(GetParam(), ranks, concat(kDemo, ' ', arguments));
  }
};

TEST_P(MpiTest, TheExampleAddsTheNumbersOfThreeRanks) {
  const auto [status, output] =
      run_command("timeout -k 5 60 env -u RANK -u WORLD_SIZE TRIREME_BACKEND=mpi " +
                  test::mpirun(GetParam(), 3, "\"" + test::binary_dir() + "/bin/all_reduce\""));
  EXPECT_EQ(status, 0) << output;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(output, HasSubstr(concat("rank ", rank, " of 3 over mpi: [15, 27, 39]")));
  }
}

// Counts beyond what one call of MPI takes, by making that 7 elements.
TEST_P(MpiTest, ManyCallsOfAFewElements) {
  ::setenv("TRIREME_MPI_MOST", "7", 1);
  EXPECT_THAT(test::run_over_mpi(GetParam(), 3,
                                 [](World& world) {
                                   for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kUInt8}) {
                                     check_every_operation(world.group(), type);
                                   }
                                 }),
              IsEmpty());
  ::unsetenv("TRIREME_MPI_MOST");
}

TEST_P(MpiTest, MaximaKeepNaN) {
  EXPECT_THAT(
      test::run_over_mpi(GetParam(), 2,
                         [](World& world) {
                           for (const auto type : {torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kHalf}) {
                             auto tensor = torch::full({3}, world.rank() == 0 ? NAN : 1.0, type);
                             world.group().all_reduce(tensor, ReduceOp::max).wait();
                             EXPECT_TRUE(torch::isnan(tensor).all().item<bool>()) << c10::toString(type);
                             world.group().all_reduce(tensor, ReduceOp::min).wait();
                             EXPECT_TRUE(torch::isnan(tensor).all().item<bool>()) << c10::toString(type);
                           }
                         }),
      IsEmpty());
}

TEST_P(MpiTest, UnknownTypesAndTagsAreErrors) {
  EXPECT_THAT(test::run_over_mpi(GetParam(), 2,
                                 [](World& world) {
                                   auto complex = torch::zeros({2}, torch::kComplexFloat);
                                   EXPECT_THROW(world.group().all_reduce(complex), Error);
                                   auto tensor = torch::zeros({2});
                                   EXPECT_THROW(world.group().send(tensor, 1 - world.rank(), -5), Error);
                                   world.group().barrier().wait();
                                 }),
              IsEmpty());
}

TEST_P(MpiTest, AMissingRankIsNamedInTime) {
  const auto [status, output] = run_command(demo(3, "--sleep-on 1"));
  EXPECT_NE(status, 0);
  EXPECT_THAT(output, HasSubstr("barrier #2 (\"in vain\""));
  EXPECT_THAT(output, HasSubstr("rank 1"));
}

TEST_P(MpiTest, ARankThatFailsIsHeard) {
  const auto [status, output] = run_command(demo(3, "--throw-on 2"));
  EXPECT_NE(status, 0);
  EXPECT_NE(status, 124) << "it hung\n" << output;
  EXPECT_THAT(output, HasSubstr("[demo] fails on purpose."));
}

TEST_P(MpiTest, EndsCleanly) {
  const auto [status, output] = run_command(demo(3));
  EXPECT_EQ(status, 0) << output;
  EXPECT_THAT(output, HasSubstr("rank 2 of 3 (local 2 of 3): [15, 27, 39]"));
  EXPECT_THAT(output, Not(HasSubstr("finalize")));
}

INSTANTIATE_TEST_SUITE_P(Libraries, MpiTest, testing::Values("openmpi", "mpich"),
                         [](const auto& info) { return std::string(info.param); });

TEST(WithoutMpiTest, ProgramsDoNotNeedItAndSayHowToGetIt) {
  EXPECT_THAT(run_command("ldd " + kDemo).second, Not(HasSubstr("libmpi")));
  const auto [status, output] = run_command("env -u PMI_SIZE RANK=0 WORLD_SIZE=1 TRIREME_BACKEND=mpi " + kDemo);
  EXPECT_EQ(status, 2);
  EXPECT_THAT(output, HasSubstr("backend \"mpi\" is not available here. Start the ranks with mpirun"));
}

} // namespace
} // namespace trireme::comm
