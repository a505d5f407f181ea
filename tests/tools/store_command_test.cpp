#include "shell.h"

#include <trireme/store/client.h>
#include <trireme/store/secret.h>

#include <gmock/gmock.h>

#include <sys/stat.h>
#include <csignal>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(StoreCommandTest, ServesThoseWhoKnowTheSecretUntilItIsStopped) {
  const fs::path file = fs::path(testing::TempDir()) / concat("trireme_store_", ::getpid());
  const store::Secret secret = store::Secret::random();
  write_file_atomically(file, secret.hex());
  ::chmod(file.c_str(), 0600);
  FILE* const pipe = ::popen(
      concat("echo $$; TRIREME_SECRET_FILE=", file.string(), " exec timeout 60 ", kTrireme, " store").c_str(), "r");
  int process = 0, port = 0;
  ASSERT_EQ(std::fscanf(pipe, "%d TRIREME_ELASTIC=127.0.0.1:%d", &process, &port), 2);
  const auto connect = [&](const store::Secret& with) {
    return store::Client::connect({"127.0.0.1", port}, with, "",
                                  store::Client::Clock::now() + std::chrono::seconds(10));
  };
  connect(secret)->set("key", "value");
  EXPECT_EQ(connect(secret)->find("key"), "value");
  EXPECT_THROW(connect(store::Secret::random()), store::ConnectError);
  ::kill(process, SIGTERM);
  EXPECT_EQ(::pclose(pipe), 0);
  fs::remove(file);
}

TEST(StoreCommandTest, RefusesToRunWithoutASecretAndOnNoAddress) {
  const Finished open = sh(concat("unset TRIREME_SECRET_FILE; exec ", kTrireme, " store"), 20);
  EXPECT_EQ(open.status, 2);
  EXPECT_THAT(open.output, HasSubstr("anybody could join the job"));
  const Finished nowhere = sh(concat(kTrireme, " store --listen here"), 20);
  EXPECT_EQ(nowhere.status, 2);
  EXPECT_THAT(nowhere.output, HasSubstr("--listen here is not HOST:PORT"));
}

} // namespace
} // namespace trireme::tools
