// The published protocol, spoken by gRPC and protobuf for Python (grpc_peer.py): what it says is what we do.
#include "tests/rpc/grpc_checks.h"
#include "tests/support/command.h"

namespace trireme::rpc {
namespace {

class GrpcPythonTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_not_grpc(); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }
  static void run(const std::string& name) {
    test::EchoServer server("grpc://127.0.0.1:0", test::kAccess, "");
    const auto [status, output] =
        test::run_command("timeout -k 5 200 '" TRIREME_SOURCE_DIR "/.venv/bin/python' '" TRIREME_SOURCE_DIR "/tests/rpc/grpc_peer.py' " + name + " " + server.address());
    EXPECT_EQ(status, 0) << output;
  }
};

TEST_F(GrpcPythonTest, SaysAndHearsTheSame) {
  run("echo_works");
}

TEST_F(GrpcPythonTest, OnlyWhoKnowsTheSecretIsLetIn) {
  run("only_who_knows_the_secret");
}

TEST_F(GrpcPythonTest, WhoeverBreaksTheRulesIsPutOut) {
  run("whoever_breaks_the_rules_is_put_out");
}

TEST_F(GrpcPythonTest, CompressedFramesAreTaken) {
  run("compressed_frames_are_taken");
}

} // namespace
} // namespace trireme::rpc
