#include <trireme/base/address.h>

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(AddressTest, KnowsEveryWayToSayAllOfThem) {
  for (const char* text : {"0.0.0.0", "0", "0x0", "00.0", "::", "[::]", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0", "*"}) {
    EXPECT_TRUE(is_every_address(text)) << text;
  }
  for (const char* text :
       {"127.0.0.1", "0.0.0.1", "::1", "[::1]", "fe80::1", "::ffff:127.0.0.1", "node1", "localhost", ""}) {
    EXPECT_FALSE(is_every_address(text)) << text;
  }
}

} // namespace
} // namespace trireme
