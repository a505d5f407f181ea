#include <trireme/base/descriptor.h>
#include <trireme/base/error.h>
#include <trireme/store/secret.h>

#include <gmock/gmock.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace trireme::store {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class SecretTest : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("TRIREME_SECRET_FD");
    unsetenv("TRIREME_SECRET_FILE");
  }
  void TearDown() override {
    SetUp();
    unlink(path_.c_str());
  }
  /// Writes the file and names it in the environment.
  void keep(const std::string& content, mode_t mode) {
    unlink(path_.c_str());
    std::ofstream(path_, std::ios::binary) << content;
    chmod(path_.c_str(), mode);
    setenv("TRIREME_SECRET_FILE", path_.c_str(), 1);
  }
  static std::string refusal() {
    try {
      Secret::from_environment();
    } catch (const InputError& error) {
      return error.what();
    }
    return "no InputError";
  }

  const std::string path_ = testing::TempDir() + "trireme-secret-" + std::to_string(getpid());
};

TEST_F(SecretTest, IsEmptyWithoutVariables) {
  EXPECT_TRUE(Secret::from_environment().empty());
  EXPECT_EQ(Secret().bytes(), "");
}

TEST_F(SecretTest, RandomOnesDiffer) {
  EXPECT_NE(Secret::random().bytes(), Secret::random().bytes());
  EXPECT_EQ(Secret::random().bytes().size(), Secret::kBytes);
}

TEST_F(SecretTest, TravelsThroughAMemoryFile) {
  const Secret secret = Secret::random();
  const Descriptor file(secret.memory_file());
  setenv("TRIREME_SECRET_FD", std::to_string(file.get()).c_str(), 1);
  EXPECT_EQ(Secret::from_environment().bytes(), secret.bytes());
  EXPECT_EQ(Secret::from_environment().bytes(), secret.bytes()) << "as often as one likes";
  EXPECT_EQ(fcntl(file.get(), F_GETFD) & FD_CLOEXEC, 0) << "ranks inherit it";
  EXPECT_LT(pwrite(file.get(), "x", 1, 0), 0) << "sealed";
}

TEST_F(SecretTest, RefusesADescriptorOfSomethingElse) {
  for (const char* number : {"0", "999", "-1", "99999999999"}) {
    setenv("TRIREME_SECRET_FD", number, 1);
    EXPECT_THAT(refusal(), HasSubstr("is not the memory file with the secret")) << number;
  }
}

TEST_F(SecretTest, ReadsAPrivateFile) {
  const std::string bytes(Secret::random().bytes());
  keep(bytes, 0600);
  EXPECT_EQ(Secret::from_environment().bytes(), bytes);
  keep(bytes, 0400);
  EXPECT_EQ(Secret::from_environment().bytes(), bytes);
  keep("000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F\n", 0600);
  EXPECT_EQ(Secret::from_environment().bytes()[31], '\x1f');
}

TEST_F(SecretTest, RefusesAFileThatOthersMayRead) {
  for (const mode_t mode : {0640, 0604, 0620}) {
    keep(std::string(Secret::kBytes, 'k'), mode);
    EXPECT_THAT(refusal(), AllOf(HasSubstr("that nobody else may read"), HasSubstr("chmod 600 " + path_)));
  }
}

// As Kubernetes mounts it for a pod that does not run as root.
TEST_F(SecretTest, ReadsAFileThatRootLetsOneGroupRead) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can make root's files";
  }
  constexpr gid_t kGroup = 54321;
  const std::string bytes(Secret::random().bytes());
  for (const auto& [mode, reads] : {std::pair<mode_t, bool>{0440, true}, {0444, false}, {0460, false}}) {
    keep(bytes, mode);
    ASSERT_EQ(::chown(path_.c_str(), 0, kGroup), 0);
    ASSERT_EQ(::setegid(kGroup), 0);
    ASSERT_EQ(::seteuid(54322), 0);
    const std::string why = refusal();
    ASSERT_EQ(::seteuid(0), 0);
    ASSERT_EQ(::setegid(0), 0);
    EXPECT_EQ(why == "no InputError", reads) << mode << ": " << why;
  }
}

TEST_F(SecretTest, RefusesOtherSizesAndMissingFiles) {
  for (const char* content : {"", "short", "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1Exx"}) {
    keep(content, 0600);
    EXPECT_THAT(refusal(), HasSubstr("must hold 32 bytes or 64 hexadecimal digits"));
  }
  setenv("TRIREME_SECRET_FILE", "/nowhere/secret", 1);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("cannot be read"), HasSubstr("/dev/urandom")));
}

} // namespace
} // namespace trireme::store
