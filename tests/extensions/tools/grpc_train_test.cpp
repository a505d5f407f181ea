// trireme train with parameter servers over gRPC: the numbers are those over TCP.
#include "servers_fixture.h"

#include "tests/support/sanitized.h"

#include <tests/support/folders.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <map>

namespace trireme::tools {
namespace {

using testing::HasSubstr;

class GrpcTrainTest : public ServersTrainTest {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(test::binary_dir() + "/lib/trireme/libtrireme_grpc.so")) {
      GTEST_SKIP() << "no gRPC: built without libgrpc++-dev";
    }
    if (test::kThreadSanitizer) {
      GTEST_SKIP() << "gRPC is not instrumented";
    }
    write_servers(R"({"kind": "server", "servers": 2, "snapshot_every": 1})", 40);
    ASSERT_EQ(train("servers.json", "tcp").status, 0);
    expected_ = losses("tcp");
    ASSERT_EQ(expected_.size(), 40u);
  }
  static std::string over(const std::string& transport) {
    return concat("--set parallel.sync.transport=", transport, ' ');
  }

  std::map<int64_t, double> expected_;
};

// The numbers are the same, whatever carries them; a server that is killed listens again at the same address.
TEST_F(GrpcTrainTest, AKilledServerOverGrpcEqualsTcp) {
  const Finished killed =
      train("servers.json", "grpc", over("grpc"), killer("grpc", 10, "TRIREME_SERVER=1/2") + kSlowly);
  ASSERT_EQ(killed.status, 0) << killed.output;
  EXPECT_THAT(killed.output, HasSubstr("starting it again"));
  EXPECT_EQ(losses("grpc"), expected_);
  EXPECT_THAT(account("grpc", 0).log, HasSubstr("server 0 of 2 at grpc://127.0.0.1:"));
  EXPECT_TRUE(tensor_bytes_of_one(folder / "grpc/checkpoints/global_step40") ==
              tensor_bytes_of_one(folder / "tcp/checkpoints/global_step40"));
}

TEST_F(GrpcTrainTest, WithTlsEqualsTcp) {
  write_file_atomically(folder / "certificates.sh", R"(exec >/dev/null 2>&1; set -e; cd "$1"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=training -keyout ca.key -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=server -keyout server.key -out server.csr
echo subjectAltName=IP:127.0.0.1 > server.ext
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile server.ext -out server.pem
)");
  ASSERT_EQ(sh(concat("bash ", path("certificates.sh"), ' ', folder.string())).status, 0);
  const std::string files =
      concat("TRIREME_TLS_CERTIFICATE=", path("server.pem"), " TRIREME_TLS_KEY=", path("server.key"), ' ');
  const Finished run =
      train("servers.json", "grpcs", over("grpcs"), concat(files, "TRIREME_TLS_CA=", path("ca.pem"), ' '));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_EQ(losses("grpcs"), expected_);
  EXPECT_THAT(account("grpcs", 1).log, HasSubstr("server 1 of 2 at grpcs://127.0.0.1:"));
  const Finished stranger = train("servers.json", "stranger", over("grpcs"), files);
  EXPECT_EQ(stranger.status, 2) << stranger.output;
  EXPECT_THAT(stranger.output, HasSubstr("is not signed by an authority that this process trusts"));
  const Finished bare = train("servers.json", "bare", over("grpcs"));
  EXPECT_EQ(bare.status, 2) << bare.output;
  EXPECT_THAT(bare.output, HasSubstr("needs both TRIREME_TLS_CERTIFICATE and TRIREME_TLS_KEY"));
}

TEST_F(GrpcTrainTest, TasksOfTfConfigEqualTcp) {
  write_file_atomically(folder / "tasks.sh", concat(R"(p=$((20000 + $$ % 12000))
task() {
  TF_CONFIG=$(printf '{"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"], "ps": ["127.0.0.1:%d", "127.0.0.1:%d"]}, "task": {"type": "%s", "index": %d}}' $p $((p + 1)) $1 $2) \
    )",
                                                    kTrireme, " train ", path("servers.json"),
                                                    " --set parallel.sync.transport=grpc --out ", path("out"), R"(
}
task ps 0 & task ps 1 & task worker 1 &
task worker 0; status=$?
wait; exit $status
)"));
  const Finished tasks = sh(concat("bash ", path("tasks.sh")));
  ASSERT_EQ(tasks.status, 0) << tasks.output;
  EXPECT_THAT(tasks.output, HasSubstr("server 1 of 2 at grpc://127.0.0.1:"));
  const std::map<int64_t, double> found = losses("out");
  ASSERT_EQ(found.size(), expected_.size());
  for (const auto& [step, loss] : expected_) {
    EXPECT_NEAR(found.at(step), loss, 1e-4 * loss) << "step " << step; // nobody has shared out the cores
  }
}

} // namespace
} // namespace trireme::tools
