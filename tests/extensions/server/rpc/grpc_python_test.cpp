// The published protocol, spoken by gRPC and protobuf for Python (grpc_peer.py): what it says is what we do.
#include "tests/extensions/server/rpc/grpc_checks.h"
#include "tests/support/command.h"
#include "tests/support/peer_error.h"

#include <tests/support/folders.h>

#include <gmock/gmock.h>

#include <cstdio>

namespace trireme::rpc {
namespace {

using testing::HasSubstr;

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
        test::run_command("timeout -k 5 200 '" + test::python() + "' '" + test::source_dir() +
                          "/tests/extensions/server/rpc/grpc_peer.py' " + name + " " + server.address());
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

/// What a client says of a server that does this wrong.
std::string said_of(const std::string& what) {
  FILE* const server = ::popen(concat("exec timeout -k 5 100 '", test::python(), "' '", test::source_dir(),
                                      "/tests/extensions/server/rpc/grpc_peer.py' bad_server ", what)
                                   .c_str(),
                               "r");
  int port = 0;
  if (std::fscanf(server, "%d", &port) != 1) {
    ADD_FAILURE() << "no port";
  }
  const std::string said = test::error_of([&] {
    const auto client = connect(concat("grpc://127.0.0.1:", port), test::kAccess,
                                Clock::now() + std::chrono::seconds(what == "no_proof" ? 1 : 60));
    std::vector<std::byte> room(10);
    client->call("{}", {}, room)->wait(test::soon());
  });
  EXPECT_EQ(::pclose(server), 0);
  return said;
}

TEST_F(GrpcPythonTest, ServersThatAreNoneAreFoundOut) {
  EXPECT_THAT(said_of("proof"), HasSubstr("this process does not accept that of the parameter server"));
  EXPECT_THAT(said_of("no_proof"), HasSubstr("does not answer"));
  EXPECT_THAT(said_of("version"), HasSubstr("has another version of Trireme"));
  EXPECT_THAT(said_of("no_request"), HasSubstr("breaks the protocol: a response to an unknown request"));
  EXPECT_THAT(said_of("too_long"),
              HasSubstr("breaks the protocol: the body of a response has 11 bytes, its room only 10"));
  EXPECT_THAT(said_of("longer"), HasSubstr("breaks the protocol: a response is longer than it announced"));
  EXPECT_THAT(said_of("garbage"), HasSubstr("breaks the protocol: a frame"));
}

} // namespace
} // namespace trireme::rpc
