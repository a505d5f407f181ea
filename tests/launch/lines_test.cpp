#include <trireme/launch/lines.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace trireme::launch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(LineSplitterTest, CutsTheSameHoweverTheBytesArrive) {
  const std::string text = "one\n\ntwo\r\nthree";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    LineSplitter splitter;
    std::vector<std::string> lines;
    const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
    for (size_t at = 0; at < text.size(); at += piece) {
      splitter.add(std::string_view(text).substr(at, piece), keep);
    }
    EXPECT_THAT(lines, ElementsAre("one", "", "two\r")) << piece;
    splitter.finish(keep);
    splitter.finish(keep);
    EXPECT_THAT(lines, ElementsAre("one", "", "two\r", "three")) << piece;
  }
}

TEST(LineSplitterTest, BoundsALineThatNeverEnds) {
  LineSplitter splitter;
  std::vector<size_t> sizes;
  const auto keep = [&](std::string_view line) { sizes.push_back(line.size()); };
  const std::string piece(10'000, 'x');
  for (int i = 0; i < 20; ++i) {
    splitter.add(piece, keep);
  }
  splitter.add("\n", keep);
  EXPECT_THAT(sizes, ElementsAre(65536, 65536, 65536, 200'000 - 3 * 65536));
}

TEST(LastLinesTest, KeepsTwenty) {
  LastLines last;
  EXPECT_EQ(last.last(), "");
  for (int i = 1; i <= 25; ++i) {
    last.add("line " + std::to_string(i));
  }
  ASSERT_EQ(last.lines().size(), 20u);
  EXPECT_EQ(last.lines().front(), "line 6");
  EXPECT_EQ(last.lines().back(), "line 25");
}

// What libtorch writes below an error would push the error out.
TEST(LastLinesTest, AStackCountsAsOneLine) {
  LastLines last;
  last.add("  what():  the error");
  for (int frame = 0; frame < 40; ++frame) {
    last.add("frame #" + std::to_string(frame) + ": f" + std::to_string(frame) + "() + 0x1 (0x7f in libc10.so)");
  }
  last.add("between");
  last.add("[rank0]: frame #0: g()");
  last.add("[rank0]: frame #1: main");
  last.add("afterwards there is no frame #2");
  EXPECT_THAT(last.lines(),
              ElementsAre("  what():  the error", "frame #0: f0() + 0x1 (0x7f in libc10.so) (and 39 more frames)",
                          "between", "[rank0]: frame #0: g() (and 1 more frame)", "afterwards there is no frame #2"));
}

TEST(LastLinesTest, FindsTheLastWords) {
  LastLines last;
  last.add("the reason");
  last.add("");
  last.add("  \t");
  EXPECT_EQ(last.last(), "the reason");
}

TEST(LastLinesTest, ShortensLongLines) {
  LastLines last;
  last.add(std::string(100'000, 'x'));
  EXPECT_EQ(last.lines().front(), std::string(2000, 'x') + "...");
}

TEST(LastLinesTest, ShowsTheLastDrawingOfAProgressLine) {
  EXPECT_EQ(last_drawing("10 %\r50 %\r100 %"), "100 %");
  EXPECT_EQ(last_drawing("10 %\r50 %\r"), "50 %");
  EXPECT_EQ(last_drawing("windows\r"), "windows");
  EXPECT_THAT(last_drawing("\r"), IsEmpty());
}

} // namespace
} // namespace trireme::launch
