// trireme train on two hosts: network namespaces with a cable of 1 Gbit/s between them.
#include "shell.h"

#include "tests/support/two_hosts.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <sstream>

namespace trireme::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class NetworkTrainTest : public RunFolder {
 protected:
  double last_loss() const {
    std::istringstream lines(read_file(folder / "out/metrics.jsonl"));
    double loss = 0;
    for (std::string line; std::getline(lines, line);) {
      loss = nlohmann::json::parse(line)["loss"];
    }
    return loss;
  }
};

TEST_F(NetworkTrainTest, TwoHostsOverAGigabitEqualOneProcess) {
  if (const auto why = test::TwoHosts::missing()) {
    GTEST_SKIP() << *why << "; training between hosts is not tested";
  }
  const test::TwoHosts hosts;
  hosts.limit("1gbit");
  std::string text;
  for (const int host : {0, 1}) {
    text += concat(hosts.name(host), " slots=2 address=", hosts.address(host), "\n");
  }
  write_file_atomically(folder / "hosts", text);
  const Finished run = train(concat("--hostfile ", path("hosts"), " --rsh \"ip netns exec\""));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("over shm+gloo"), HasSubstr("x 4 ranks")));
  const double on_two_hosts = last_loss();
  std::filesystem::remove_all(folder / "out");
  ASSERT_EQ(train("").status, 0);
  EXPECT_NEAR(on_two_hosts, last_loss(),
              2e-3 * last_loss()); // other micro-batches: sums in another order, 30 steps long
}

} // namespace
} // namespace trireme::tools
