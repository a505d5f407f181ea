#include "tests/support/run_mpi.h"

#include <tests/support/folders.h>
#include <trireme/base/env.h>
#include <trireme/base/error.h>

#include "tests/support/command.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <filesystem>

namespace trireme::test {
namespace {

constexpr const char* kIsRank = "TRIREME_TEST_MPI_RANK";

bool belongs_to(const std::string& launcher, const std::string& mpi) {
  const auto [status, text] = run_command(concat(launcher, " --version"));
  return status == 0 && text.find(mpi == "openmpi" ? "Open MPI" : "HYDRA") != std::string::npos;
}

/// The mpirun of that MPI, "" when there is none: distributions name them apart where both are installed.
std::string launcher_of(const std::string& mpi) {
  for (const std::string& launcher : {concat("mpirun.", mpi), std::string("mpirun")}) {
    if (belongs_to(launcher, mpi)) {
      return launcher;
    }
  }
  return "";
}

std::string this_program() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return std::string(path.data(), length > 0 ? static_cast<size_t>(length) : 0);
}

} // namespace

bool is_mpi(const std::string& name) {
  return name == "openmpi" || name == "mpich";
}

std::string why_not_mpi(const std::string& mpi) {
  if (env::text(kIsRank)) {
    return "";
  }
  if (!std::filesystem::exists(concat(test::binary_dir(), "/lib/trireme/libtrireme_", mpi, ".so"))) {
    return concat("the backend's module for ", mpi, " is not built (install lib", mpi, "-dev and configure again)");
  }
  return launcher_of(mpi).empty() ? concat("there is no mpirun of ", mpi) : "";
}

std::string mpirun(const std::string& mpi, int ranks, const std::string& program) {
  const std::string launcher = launcher_of(mpi);
  // No binding to cores: other tests run on them at the same time.
  // Open MPI's modules, unloaded at the end, have left some memory.
  return concat("env ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\" ", launcher,
                mpi == "openmpi" ? " --allow-run-as-root --oversubscribe --bind-to none" : "", " -n ", ranks, " ",
                program);
}

std::vector<std::string> run_over_mpi(const std::string& mpi, int world_size,
                                      const std::function<void(comm::World&)>& body, const RunOptions& options) {
  if (env::text(kIsRank)) {
    comm::WorldOptions world_options;
    world_options.timeout = options.timeout;
    world_options.backend = "mpi";
    comm::World world = comm::World::connect(world_options);
    body(world);
    return {};
  }
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = concat(test->test_suite_name(), ".", test->name());
  const auto [status, output] = run_command(concat(
      "exec timeout -k 5 ", options.deadline.count() / 1000, " env -u RANK -u WORLD_SIZE ", kIsRank,
      "=1 OMP_NUM_THREADS=1 ", mpirun(mpi, world_size, concat('"', this_program(), "\" --gtest_filter=", name))));
  return status == 0 ? std::vector<std::string>() : std::vector<std::string>{concat("exit ", status, ": ", output)};
}

} // namespace trireme::test
