#pragma once

#include <gtest/gtest.h>

#include <unistd.h>

namespace trireme::test {

/// While it lives this process is no longer root, which may read, write and lock everything. Of another user's process
/// nothing changes.
class OtherUser {
 public:
  OtherUser() : before_(::geteuid()), exists_(before_ != 0 || ::seteuid(kNobody) == 0) {}
  ~OtherUser() { EXPECT_EQ(::seteuid(before_), 0); }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  /// False: root it is still. Skip the test.
  bool exists() const { return exists_; }

 private:
  static constexpr uid_t kNobody = 65534;
  uid_t before_;
  bool exists_;
};

} // namespace trireme::test
