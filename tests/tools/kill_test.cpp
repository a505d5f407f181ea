#include "shell.h"

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class KillTest : public RunFolder {
 protected:
  // All tensor bytes of the last checkpoint; the headers differ by the identity of the save.
  std::string final_state(const fs::path& out) {
    std::string bytes;
    for (int rank = 0; rank < 2; ++rank) {
      const std::string file = read_file(out / "checkpoints/global_step30" / concat("rank0000", rank, ".safetensors"));
      uint64_t header = 0;
      std::memcpy(&header, file.data(), sizeof header);
      bytes += file.substr(8 + header);
    }
    EXPECT_GT(bytes.size(), 100'000u);
    return bytes;
  }

  static int64_t count_processes(const std::string& mark) {
    int64_t count = 0;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::ifstream in(entry.path() / "cmdline");
      std::stringstream text;
      text << in.rdbuf();
      count += text.str().find(mark) != std::string::npos && text.str().find("trireme-rank") != std::string::npos ? 1 : 0;
    }
    return count;
  }

  // A shell script that kills one rank as soon as metrics.jsonl has `lines` lines.
  std::string killer(const std::string& out, int lines, int rank) {
    return concat("while [ \"$(cat ", out, "/metrics.jsonl 2>/dev/null | wc -l)\" -lt ", lines, " ]; do sleep 0.01; done; for p in $(pgrep -f \"trireme-rank train.*", out,
                  "\"); do tr \"\\\\0\" \"\\\\n\" < /proc/$p/environ 2>/dev/null | grep -qx RANK=", rank, " && kill -9 $p; done");
  }
};

TEST_F(KillTest, ARankKilledAtARandomStepRestartsAndEndsBitIdentical) {
  const Finished clean = sh(concat(kTrireme, " train ", path("run.json"), " -n 2 --out ", path("clean")));
  ASSERT_EQ(clean.status, 0) << clean.output;
  std::mt19937 random(::getpid());
  const int rounds = std::getenv("TRIREME_LONG_TESTS") != nullptr ? 20 : 2;
  for (int round = 0; round < rounds; ++round) {
    const std::string out = path(concat("killed", round));
    const int lines = 6 + static_cast<int>(random() % 20);
    const int rank = static_cast<int>(random() % 2);
    SCOPED_TRACE(concat("rank ", rank, " killed at step ", lines));
    const Finished run = sh(concat("( ", killer(out, lines, rank), " ) & ", kTrireme, " train ", path("run.json"), " -n 2 --max-restarts 2 --out ", out, "; s=$?; wait; exit $s"));
    EXPECT_EQ(run.status, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr("SIGKILL"));
    EXPECT_TRUE(final_state(out) == final_state(folder / "clean"));
    EXPECT_EQ(count_processes(out), 0);
    // Steps between the checkpoint and the kill are not counted twice.
    const std::string metrics = read_file(fs::path(out) / "metrics.jsonl");
    EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 30);
  }
}

TEST_F(KillTest, WithoutRestartsTheRankIsNamedAndNothingIsLeft) {
  const std::string out = path("out");
  const Finished run = sh(concat("( ", killer(out, 8, 1), " ) & ", kTrireme, " train ", path("run.json"), " -n 2 --out ", out, " --set training.steps=100000; s=$?; wait; exit $s"));
  EXPECT_EQ(run.status, 137) << run.output;
  EXPECT_THAT(run.output, HasSubstr("rank 1 was killed by SIGKILL"));
  EXPECT_EQ(count_processes(out), 0);
}

} // namespace
} // namespace trireme::tools
