#include <tests/support/folders.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/parallel/pipeline/timeline_draw.h>

#include <gmock/gmock.h>

#include <algorithm>

namespace trireme::pipeline {
namespace {

using testing::HasSubstr;
using testing::Not;

Timeline timeline_to_draw(ScheduleKind kind, const ScheduleShape& shape) {
  return simulate(make_programs(kind, shape), shape);
}

TEST(DrawTextTest, OneRowAStage) {
  EXPECT_EQ(draw_text(timeline_to_draw(ScheduleKind::one_f_one_b, {2, 2, 1})),
            "stage 0 |0 1 . . (0) . (1) |\n"
            "stage 1 |. 0 (0) 1 (1) . . |\n"
            "\n"
            "3 forward  (3) backward of micro-batch 3  . idle\n"
            "bubble 33.3 %, 9 units, micro-batches in flight at most 2 1 (by stage)\n");
}

TEST(DrawTextTest, SplitBackwardsAndChunksAreToldApart) {
  const std::string zero = draw_text(timeline_to_draw(ScheduleKind::zero_bubble, {2, 4, 1}));
  EXPECT_THAT(zero, HasSubstr("[0]"));
  EXPECT_THAT(zero, HasSubstr("w0"));
  EXPECT_THAT(zero, HasSubstr("[3] input gradient  w3 weight gradient"));
  const std::string chunks = draw_text(timeline_to_draw(ScheduleKind::interleaved, {2, 2, 2}));
  EXPECT_THAT(chunks, HasSubstr("|0a"));
  EXPECT_THAT(chunks, HasSubstr("(0b)"));
}

TEST(DrawTextTest, FitsTheTerminalAndSaysSo) {
  const std::string text = draw_text(timeline_to_draw(ScheduleKind::one_f_one_b, {4, 100, 1}), 80);
  for (const std::string& line : split(text.substr(0, text.find("\n\n")), '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
    EXPECT_EQ(line.back(), '|');
  }
  EXPECT_THAT(text, HasSubstr("Scaled to fit"));
  EXPECT_THAT(text, HasSubstr("#"));
  EXPECT_THAT(draw_text(timeline_to_draw(ScheduleKind::one_f_one_b, {4, 8, 1}), 80), Not(HasSubstr("Scaled")));
}

// The page shows what the program draws.
TEST(DrawTextTest, ThePageOfSchedulesIsUpToDate) {
  const std::string page = read_file(test::source_dir() + "/docs/schedules.md");
  for (const char* name : {"naive", "gpipe", "1f1b", "interleaved", "zero-bubble"}) {
    const ScheduleKind kind = parse_schedule(name);
    EXPECT_THAT(
        page,
        HasSubstr("```\n" + draw_text(timeline_to_draw(kind, {4, 4, kind == ScheduleKind::interleaved ? 2 : 1}), 140) +
                  "```"));
  }
}

TEST(DrawTextTest, NothingIsDrawnAsNothing) {
  Timeline empty;
  empty.peak_in_flight = {0};
  EXPECT_THAT(draw_text(empty), HasSubstr("stage 0 ||"));
  EXPECT_THAT(draw_svg(empty, "empty"), HasSubstr("</svg>"));
}

TEST(DrawSvgTest, IsOneImageWithoutScripts) {
  const std::string svg = draw_svg(timeline_to_draw(ScheduleKind::interleaved, {3, 6, 2}), "a < b & \"c\"");
  EXPECT_THAT(svg, HasSubstr("<title>a &lt; b &amp; &quot;c&quot;</title>"));
  EXPECT_THAT(svg, HasSubstr("backward of micro-batch 5, chunk 1"));
  EXPECT_THAT(svg, HasSubstr("forward, chunk 0"));
  EXPECT_THAT(svg, HasSubstr("stage 2"));
  for (const char* never : {"<script", "href", "http://", "nan", "inf"}) {
    std::string rest = svg;
    rest.erase(rest.find("xmlns=\"http://www.w3.org/2000/svg\""), 35);
    EXPECT_THAT(rest, Not(HasSubstr(never)));
  }
  for (const auto& [open, close] :
       {std::pair("<g>", "</g>"), std::pair("<text", "</text>"), std::pair("<title>", "</title>")}) {
    const auto count = [&](const std::string& word) {
      size_t n = 0;
      for (size_t at = svg.find(word); at != std::string::npos; at = svg.find(word, at + 1)) {
        ++n;
      }
      return n;
    };
    EXPECT_EQ(count(open), count(close)) << open;
    EXPECT_GT(count(open), 0u);
  }
}

} // namespace
} // namespace trireme::pipeline
