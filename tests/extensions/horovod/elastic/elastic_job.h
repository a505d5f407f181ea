#pragma once

#include <trireme/base/error.h>
#include <trireme/store/secret.h>
#include <trireme/store/server.h>
#include <trireme/store/sockets.h>

#include <tests/support/gate.h>
#include <tests/support/run_ranks.h>

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace trireme::horovod::elastic {

/// Processes of an elastic job: number 0 runs its store until `lasting` of the others have come to their end.
class ElasticTest : public testing::Test {
 protected:
  ElasticTest()
      : listening_(store::listen_on({"127.0.0.1", 0})),
        secret_(std::filesystem::path(testing::TempDir()) / concat("trireme_elastic_", ::getpid())) {
    std::ofstream(secret_) << store::Secret::random().hex();
    ::chmod(secret_.c_str(), 0600);
    ::setenv("TRIREME_SECRET_FILE", secret_.c_str(), 1);
    ::setenv("TRIREME_ELASTIC", concat("127.0.0.1:", store::bound_port(listening_)).c_str(), 1);
  }
  ~ElasticTest() override {
    ::close(listening_);
    std::filesystem::remove(secret_);
    ::unsetenv("TRIREME_SECRET_FILE");
    ::unsetenv("TRIREME_ELASTIC");
  }

  store::Endpoint store() const { return {"127.0.0.1", store::bound_port(listening_)}; }
  std::vector<std::string> run_workers(int workers, int lasting, const std::function<void(int worker)>& body) {
    return test::run_processes(workers + 1, [&](int process) {
      if (process == 0) {
        const store::Server server(listening_, {.secret = store::Secret::from_environment()});
        ended_.wait(lasting);
        return;
      }
      try {
        body(process);
      } catch (...) {
        ended_.open();
        throw;
      }
      ended_.open();
    });
  }

 private:
  int listening_;
  std::filesystem::path secret_;
  test::Gate ended_;
};

} // namespace trireme::horovod::elastic
