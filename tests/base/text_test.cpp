#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/base/units.h>

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(TextTest, NearestFindsSlipsOnly) {
  const std::vector<std::string> keys = {"steps", "seed", "eval_every", "checkpoint_every"};
  EXPECT_EQ(nearest("setps", keys), "steps");
  EXPECT_EQ(nearest("checkpoint_evry", keys), "checkpoint_every");
  EXPECT_EQ(nearest("Eval_Every", keys), "eval_every");
  EXPECT_EQ(nearest("optimizer", keys), "");
  EXPECT_EQ(did_you_mean("optimizer", {"a", "b"}), "Known: a, b.");
}

TEST(TextTest, AnErrorThatQuotesAnotherHasOneFullStop) {
  const std::string inner = Error("data", "the file is empty", "Write one.").what();
  EXPECT_EQ(Error("comm", concat("rank 1 reports: ", inner, '.'), "Look there.").what(),
            std::string("[comm] rank 1 reports: [data] the file is empty. Write one. Look there."));
  EXPECT_EQ(Error("comm", concat("rank 1 reports: ", inner)).what(),
            std::string("[comm] rank 1 reports: [data] the file is empty. Write one."));
  EXPECT_EQ(Error("comm", "and so on...").what(), std::string("[comm] and so on..."));
  EXPECT_EQ(Error("comm", "it says: and so on....", "Look.").what(), std::string("[comm] it says: and so on... Look."));
  EXPECT_EQ(Error("comm", "go on?").what(), std::string("[comm] go on?"));
}

TEST(TextTest, SplitAndJoinAreInverse) {
  EXPECT_EQ(split("a..b", '.'), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(join(split("x.y.z", '.'), "."), "x.y.z");
}

TEST(TextTest, NothingForATerminalSteersIt) {
  EXPECT_EQ(printable("caf\u00e9 \u4e2d\U0001f642 plain"), "caf\u00e9 \u4e2d\U0001f642 plain");
  EXPECT_EQ(printable("a\x1b[31mb\r\n\tc\x7f"), "a?[31mb???c?");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J\xc2\x80\xc2\xa0"),
            "?2J?\xc2\xa0")
      << "C1, and what follows it";
  EXPECT_EQ(printable("\x9b"
                      "2J\xff\xc2"),
            "?2J??")
      << "no UTF-8";
  EXPECT_EQ(clean_utf8("a\n\tb\x1b", "?"), "a\n\tb?");
}

TEST(LogTest, MessagesCannotSteerATerminal) {
  std::string line;
  log::set_sink([&](const std::string& text) { line = text; });
  log::error(
      "cannot read \x1b[2Jfile\xc2\x9b"
      "1m\nmore");
  log::set_sink(nullptr);
  EXPECT_EQ(line, "error: cannot read ?[2Jfile?1m\nmore\n");
}

TEST(UnitsTest, ThreeSignificantDigits) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(26214400), "26.2 MB");
  EXPECT_EQ(format_bytes(999900), "1.00 MB");
  EXPECT_EQ(format_count(4024950), "4.02M");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_seconds(0.00095), "950 us");
  EXPECT_EQ(format_seconds(0.0412), "41.2 ms");
  EXPECT_EQ(format_seconds(245), "4 min 05 s");
  EXPECT_EQ(format_seconds(7380), "2 h 03 min");
}

} // namespace
} // namespace trireme
