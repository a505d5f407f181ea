// grpcs://: who trusts whom, and whether the errors name what is wrong.
#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/extensions/server/rpc/rpc.h>

#include "tests/extensions/server/rpc/grpc_checks.h"
#include "tests/support/command.h"
#include "tests/support/free_port.h"
#include "tests/support/peer_error.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace trireme::rpc {
namespace {

using test::EchoServer;
using test::error_of;
using test::kAccess;
using test::run_command;
using test::soon;
using testing::HasSubstr;

/// Two authorities, and certificates made by docs/grpc.md's recipe: of a server, of one with another name, of one that
/// has expired, of a client.
class GrpcTlsTest : public testing::Test {
 protected:
  static constexpr const char* kRecipe = R"(set -e; cd "$FOLDER"
authority() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$1" -keyout $1.key -out $1.pem; }
signed() { # signed NAME AUTHORITY DAYS SUBJECT_ALT_NAMES
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout $1.key -out $1.csr
  printf 'subjectAltName=%s\n' "$4" > $1.ext
  openssl x509 -req -in $1.csr -CA $2.pem -CAkey $2.key -CAcreateserial -days $3 -extfile $1.ext -out $1.pem
}
authority ca; authority stranger
signed server ca 30 DNS:localhost,IP:127.0.0.1
signed other ca 30 DNS:other.example
signed expired ca -1 DNS:localhost,IP:127.0.0.1
signed client ca 30 DNS:worker0
signed intruder stranger 30 DNS:worker0
)";

  void SetUp() override {
    if (const std::string why = test::why_not_grpc(); !why.empty()) {
      GTEST_SKIP() << why;
    }
    folder_ = testing::TempDir() + "trireme_grpc_tls_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    ::setenv("FOLDER", folder_.c_str(), 1);
    const auto [status, output] = run_command(kRecipe);
    ASSERT_EQ(status, 0) << output;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name) const { return concat(folder_, '/', name); }
  void own(const std::string& name) const {
    ::setenv("TRIREME_TLS_CERTIFICATE", name.empty() ? "" : file(name + ".pem").c_str(), 1);
    ::setenv("TRIREME_TLS_KEY", name.empty() ? "" : file(name + ".key").c_str(), 1);
  }
  void trust(const std::string& name, const char* variable = "TRIREME_TLS_CA") const {
    ::setenv(variable, name.empty() ? "" : file(name + ".pem").c_str(), 1);
  }
  static std::string talk(const std::string& address) {
    return connect(address, kAccess, soon())->call("x")->wait(soon());
  }
  /// The error that says so at once: trying again would not help.
  static std::string why_not(const std::string& address) {
    try {
      return talk(address);
    } catch (const InputError& error) {
      return error.what();
    }
  }
  static std::string port_of(const std::string& address) { return address.substr(address.rfind(':')); }

  std::string folder_;
};

TEST_F(GrpcTlsTest, ServesThoseWhoTrustItsAuthority) {
  own("server");
  EchoServer server("grpcs://127.0.0.1:0");
  own("");
  trust("ca");
  EXPECT_EQ(talk(server.address()), "echo x");
  EXPECT_EQ(talk("grpcs://localhost" + port_of(server.address())), "echo x");
  trust("stranger");
  EXPECT_THAT(why_not(server.address()), HasSubstr("is not signed by an authority that this process trusts"));
  trust(""); // the system's
  EXPECT_THAT(why_not(server.address()), HasSubstr("Set TRIREME_TLS_CA to the file"));
  Access other = kAccess;
  other.secret.back() ^= 1;
  trust("ca");
  EXPECT_THAT(error_of([&] { connect(server.address(), other, soon()); }), HasSubstr("the secret is wrong"));
}

TEST_F(GrpcTlsTest, AlsoOnASocketThatListensAlready) {
  own("server");
  trust("ca");
  test::EchoServer server(concat("grpcs+fd://", store::listen_on({"127.0.0.1", 0})));
  EXPECT_EQ(server.address().substr(0, 18), "grpcs://127.0.0.1:");
  EXPECT_EQ(talk(server.address()), "echo x");
}

TEST_F(GrpcTlsTest, PythonTrustsItToo) {
  own("server");
  trust("ca", "TRIREME_TLS_CLIENT_CA");
  EchoServer server("grpcs://127.0.0.1:0", kAccess, "");
  own("client");
  const auto [status, output] = run_command("timeout -k 5 200 '" + test::python() + "' '" + test::source_dir() +
                                            "/tests/extensions/server/rpc/grpc_peer.py' tls_works " + server.address());
  EXPECT_EQ(status, 0) << output;
}

TEST_F(GrpcTlsTest, ACertificateIsForAName) {
  own("other");
  EchoServer server("grpcs://127.0.0.1:0");
  own("");
  trust("ca");
  EXPECT_THAT(why_not("grpcs://localhost" + port_of(server.address())), HasSubstr("is for another name"));
  EXPECT_THAT(why_not(server.address()), HasSubstr("is for another name"));
}

TEST_F(GrpcTlsTest, AServerMayAskForCertificatesToo) {
  own("server");
  trust("ca", "TRIREME_TLS_CLIENT_CA");
  EchoServer server("grpcs://127.0.0.1:0");
  trust("ca");
  own("client");
  EXPECT_EQ(talk(server.address()), "echo x");
  own("");
  EXPECT_THAT(test::why_not_in_time(server.address(), "Socket closed"), HasSubstr("may require client certificates"));
  own("intruder");
  EXPECT_THAT(test::why_not_in_time(server.address(), "Socket closed"), HasSubstr("may require client certificates"));
}

TEST_F(GrpcTlsTest, BothSidesSpeakItOrNeither) {
  own("server");
  EchoServer with("grpcs://127.0.0.1:0");
  EchoServer without("grpc://127.0.0.1:0");
  own("");
  trust("ca");
  EXPECT_THAT(why_not("grpcs://127.0.0.1" + port_of(without.address())), HasSubstr("does not speak TLS"));
  EXPECT_THAT(test::why_not_in_time("grpc://127.0.0.1" + port_of(with.address()), "Socket closed"),
              HasSubstr("It may use TLS (then connect to it as grpcs://127.0.0.1:"));
}

TEST_F(GrpcTlsTest, WhatIsWrongWithItsFilesIsSaid) {
  const auto why = [] { return error_of([] { serve("grpcs://127.0.0.1:0", kAccess); }); };
  EXPECT_THAT(why(), HasSubstr("a server with TLS needs both TRIREME_TLS_CERTIFICATE and TRIREME_TLS_KEY"));
  own("nowhere");
  EXPECT_THAT(why(), HasSubstr("the file of TRIREME_TLS_CERTIFICATE cannot be read"));
  EXPECT_THAT(why(), HasSubstr("nowhere.pem"));
  own("server");
  ::setenv("TRIREME_TLS_KEY", file("client.key").c_str(), 1);
  EXPECT_THAT(why(), HasSubstr("does not belong to the certificate"));
  ::setenv("TRIREME_TLS_KEY", file("server.pem").c_str(), 1);
  EXPECT_THAT(why(), HasSubstr("TRIREME_TLS_KEY has no private key"));
  own("server");
  ::setenv("TRIREME_TLS_CERTIFICATE", file("server.csr").c_str(), 1);
  EXPECT_THAT(why(), HasSubstr("TRIREME_TLS_CERTIFICATE has no certificate"));
  own("expired");
  EXPECT_THAT(why(), HasSubstr("has expired"));
  own("server");
  ::setenv("TRIREME_TLS_CLIENT_CA", file("server.key").c_str(), 1);
  EXPECT_THAT(why(), HasSubstr("TRIREME_TLS_CLIENT_CA has no certificate"));
  ::setenv("TRIREME_TLS_CA", file("server.key").c_str(), 1);
  EXPECT_THAT(error_of([] { connect("grpcs://127.0.0.1:1", kAccess, soon()); }),
              HasSubstr("TRIREME_TLS_CA has no certificate"));
}

} // namespace
} // namespace trireme::rpc
