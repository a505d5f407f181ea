#include <trireme/base/env.h>
#include <trireme/base/error.h>

#include <gmock/gmock.h>

#include <cstdlib>

namespace trireme {
namespace {

TEST(EnvTest, ReadsNumbersAndRefusesOthers) {
  ::setenv("TRIREME_TEST_NUMBER", "12", 1);
  EXPECT_EQ(env::integer("TRIREME_TEST_NUMBER"), 12);
  ::setenv("TRIREME_TEST_NUMBER", "12x", 1);
  try {
    env::integer("TRIREME_TEST_NUMBER");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("TRIREME_TEST_NUMBER must be a whole number, got \"12x\""));
    EXPECT_EQ(error.exit_code(), 2);
  }
  ::setenv("TRIREME_TEST_NUMBER", "", 1);
  EXPECT_EQ(env::integer("TRIREME_TEST_NUMBER"), std::nullopt);
}

TEST(EnvTest, FlagsAreWords) {
  ::setenv("TRIREME_TEST_FLAG", "on", 1);
  EXPECT_TRUE(env::flag("TRIREME_TEST_FLAG"));
  ::setenv("TRIREME_TEST_FLAG", "maybe", 1);
  EXPECT_THROW(env::flag("TRIREME_TEST_FLAG"), InputError);
  ::unsetenv("TRIREME_TEST_FLAG");
  EXPECT_TRUE(env::flag("TRIREME_TEST_FLAG", true));
}

TEST(EnvTest, APlaceIsANumberOfSoMany) {
  EXPECT_EQ(env::place("TRIREME_TEST_PLACE"), std::nullopt);
  ::setenv("TRIREME_TEST_PLACE", "2/4", 1);
  EXPECT_EQ(env::place("TRIREME_TEST_PLACE"), std::pair(2, 4));
  for (const char* wrong : {"4/4", "-1/4", "2", "2/", "2/4/1", "a/4", "1/4 "}) {
    ::setenv("TRIREME_TEST_PLACE", wrong, 1);
    EXPECT_THROW(env::place("TRIREME_TEST_PLACE"), InputError) << wrong;
  }
}

} // namespace
} // namespace trireme
