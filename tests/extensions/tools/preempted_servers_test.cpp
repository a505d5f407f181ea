// `trireme train` with parameter servers is told to stop in its first moments.
#include <tests/tools/shell.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class PreemptedServersTest : public RunFolder {};

// The worker has begun and says where to continue, or the launcher says it.
TEST_F(PreemptedServersTest, ASignalInTheFirstMomentsStopsAWorkerAndItsServerToo) {
  for (const char* later : {"0", "0.1", "0.3", "1"}) {
    const std::string out = concat("out", later);
    const Finished run =
        sh(concat(kTrireme, " train ", path("run.json"), " -n 1 --out ", path(out),
                  " --set training.checkpoint_every=100000 --set training.steps=1000000 --set "
                  "parallel.sync.kind=server --stopped-status 75 & p=$!; while [ ! -e ",
                  path(out), "/logs/lock ]; do sleep 0.001; done; sleep ", later, "; kill -TERM $p; wait $p"),
           60);
    EXPECT_EQ(run.status, 75) << later << " s after its beginning: " << run.output;
    EXPECT_EQ(nlohmann::json::parse(read_file(folder / out / "launch.json"))["status"], "preempted");
    EXPECT_THAT(run.output,
                AnyOf(HasSubstr("stopped before anything was saved"), // by the launcher: it had not begun
                      AllOf(HasSubstr("stopped by SIGTERM at step "), HasSubstr("; continue with --resume"))))
        << later << " s after its beginning";
    EXPECT_EQ(run.output.find("stopped by SIGTERM at step ") != std::string::npos,
              fs::exists(folder / out / "checkpoints/latest"))
        << run.output;
  }
}

} // namespace
} // namespace trireme::tools
