#include <trireme/store/messages.h>
#include <trireme/store/requests.h>
#include <trireme/store/table.h>

#include <gmock/gmock.h>

#include <limits>
#include <random>

namespace trireme::store {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

TEST(TableTest, WaitersAreReadyWhenTheirLastKeyComes) {
  Table table;
  table.set("a", "1");
  EXPECT_TRUE(table.wait(7, {"a"}));
  EXPECT_TRUE(table.wait(7, {}));
  EXPECT_FALSE(table.wait(7, {"a", "b", "c", "c"}));
  EXPECT_FALSE(table.wait(8, {"b"}));
  table.add("b", 1);
  EXPECT_THAT(table.take_ready(), ElementsAre(8));
  table.append("c", "x");
  EXPECT_THAT(table.take_ready(), ElementsAre(7));
  EXPECT_THAT(table.take_ready(), IsEmpty());
}

TEST(TableTest, WhoeverIsForgottenIsNotWoken) {
  Table table;
  table.wait(1, {"a", "b"});
  table.wait(2, {"a"});
  table.forget(1);
  table.forget(3);
  table.set("a", "");
  table.set("b", "");
  EXPECT_THAT(table.take_ready(), UnorderedElementsAre(2));
}

TEST(TableTest, AddsDecimalNumbers) {
  Table table;
  EXPECT_EQ(table.add("n", 5), 5);
  EXPECT_EQ(table.add("n", -7), -2);
  EXPECT_EQ(*table.find("n"), "-2");
  table.set("n", "40");
  EXPECT_EQ(table.add("n", 2), 42);
  table.set("n", "forty");
  EXPECT_EQ(table.add("n", 2), std::nullopt);
  table.set("n", std::to_string(std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(table.add("n", 1), std::nullopt);
}

TEST(TableTest, CompareSetIsThatOfC10d) {
  Table table;
  EXPECT_EQ(table.compare_set("k", "old", "new"), "old") << "nothing there";
  EXPECT_EQ(table.find("k"), nullptr);
  EXPECT_EQ(table.compare_set("k", "", "first"), "first");
  EXPECT_EQ(table.compare_set("k", "other", "second"), "first");
  EXPECT_EQ(table.compare_set("k", "first", "second"), "second");
}

TEST(RequestsTest, RandomBytesAreNeverMoreThanABadMessage) {
  std::mt19937 random(1);
  Table table;
  int refused = 0;
  for (int turn = 0; turn < 50'000; ++turn) {
    std::string request(1 + random() % 40, '\0');
    for (char& byte : request) {
      byte = static_cast<char>(random() % 3 == 0 ? random() : random() % 4);
    }
    request[0] = static_cast<char>(random() % 12);
    try {
      carry_out(table, 5, request);
      table.forget(5);
    } catch (const BadMessage&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(MessagesTest, LengthsOutOfBoundsAreRefused) {
  EXPECT_THROW(message_length(std::string_view("\0\0\0\0", 4)), BadMessage);
  EXPECT_THROW(message_length("\xff\xff\xff\xff"), BadMessage);
  EXPECT_EQ(message_length(std::string_view("\x05\0\0\0", 4)), 5u);
  EXPECT_THROW(MessageWriter(Op::set).add(std::string_view(std::string(kLongestMessage + 1, 'x'))).finish(),
               BadMessage);
}

} // namespace
} // namespace trireme::store
