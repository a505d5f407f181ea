// The commands of docs/launching.md for torchrun and mpirun, as they stand there.
#include "tests/tools/shell.h"

#include <tests/support/folders.h>

#include <gmock/gmock.h>

#include <sstream>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// Lines "    $ COMMAND" of the section, those that begin with `program`.
std::vector<std::string> commands_of_page(const std::string& program) {
  const std::string page = read_file(test::source_dir() + "/docs/launching.md");
  const size_t section = page.find("## Under another launcher");
  EXPECT_NE(section, std::string::npos);
  std::istringstream lines(page.substr(section, page.find("\n## ", section + 1) - section));
  std::vector<std::string> commands;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("    $ " + program + " ")) {
      commands.push_back(line.substr(6));
    }
  }
  return commands;
}

class LaunchersTest : public RunFolder {
 protected:
  LaunchersTest() {
    // As a person types it: the programs are on the path, and nothing is left of this test's own launcher.
    write_file_atomically(folder / "setting.sh",
                          "export PATH=\"" + test::binary_dir() + "/bin:" + test::source_dir() +
                              "/.venv/bin:$PATH\" OMP_NUM_THREADS=1\n"
                              "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                              "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none\n"
                              "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT\n");
  }
  Finished type(const std::string& command, const std::string& before = "") const {
    write_file_atomically(folder / "typed.sh", concat(". ./setting.sh\n", before, command, "\n"));
    return sh(concat("cd ", folder.string(), " && sh typed.sh"));
  }
  std::string state_of(const std::string& run) const {
    return tensor_bytes(folder / run / "checkpoints/global_step30");
  }
  std::string of_trireme_alone() const {
    const Finished run = type("trireme train run.json -n 2 --out clean");
    EXPECT_EQ(run.status, 0) << run.output;
    return state_of("clean");
  }
  // Each of the page's commands trains as `trireme train -n 2` does.
  void expect_all_train(const std::string& program, size_t commands) const {
    const std::string clean = of_trireme_alone();
    const auto all = commands_of_page(program);
    ASSERT_EQ(all.size(), commands);
    for (const std::string& command : all) {
      const Finished run = type(command);
      EXPECT_EQ(run.status, 0) << command << '\n' << run.output;
      EXPECT_TRUE(state_of("runs/run") == clean) << command;
      EXPECT_THAT(run.output, HasSubstr("2 ranks, 2 data-parallel")) << command;
      fs::remove_all(folder / "runs");
    }
  }
};

TEST_F(LaunchersTest, TorchrunTrains) {
  if (sh("test -x \"" + test::source_dir() + "/.venv/bin/torchrun\"").status != 0) {
    GTEST_SKIP() << "there is no torchrun in .venv";
  }
  expect_all_train("torchrun", 2);
}

TEST_F(LaunchersTest, TorchrunStartsKilledRanksAgain) {
  if (sh("test -x \"" + test::source_dir() + "/.venv/bin/torchrun\"").status != 0) {
    GTEST_SKIP() << "there is no torchrun in .venv";
  }
  const std::string clean = of_trireme_alone();
  const auto all = commands_of_page("torchrun");
  ASSERT_FALSE(all.empty());
  const Finished run = type(all.front(), "export TRIREME_FAULT=rank=1,step=13,phase=all_reduce,kind=kill\n");
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("/checkpoints/global_step10 at step 10"));
  EXPECT_TRUE(state_of("runs/run") == clean) << run.output;
}

TEST_F(LaunchersTest, MpirunTrains) {
  if (sh("mpirun --version | grep -q Open.MPI").status != 0) {
    GTEST_SKIP() << "there is no mpirun of Open MPI";
  }
  expect_all_train("mpirun", 2);
}

} // namespace
} // namespace trireme::tools
