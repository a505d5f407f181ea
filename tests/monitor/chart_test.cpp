#include <trireme/monitor/chart.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <regex>

namespace trireme::monitor {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<Point> falling(int count) {
  std::vector<Point> points;
  for (int i = 1; i <= count; ++i) {
    points.push_back({static_cast<double>(i), 1 + 4 * std::exp(-i / 50.0)});
  }
  return points;
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) {
    ++found;
  }
  return found;
}

TEST(ChartTest, DrawsInsideItsFrame) {
  const std::string svg = draw_chart({{"loss", "a", falling(500), false}}, {});
  const std::regex number("[ML ](-?[0-9.]+) (-?[0-9.]+)");
  const std::string path =
      svg.substr(svg.find(" d=\"") + 4, svg.find("\"/>", svg.find(" d=\"")) - svg.find(" d=\"") - 4);
  int points = 0;
  for (std::sregex_iterator it(path.begin(), path.end(), number); it != std::sregex_iterator(); ++it, ++points) {
    const double x = std::stod((*it)[1]);
    const double y = std::stod((*it)[2]);
    ASSERT_TRUE(x >= 0 && x <= 1060 && y >= 0 && y <= 360) << x << ' ' << y;
  }
  EXPECT_EQ(points, 500);
}

TEST(ChartTest, LimitsPointsButKeepsTheStart) {
  const auto json_points = json::parse(chart_points_json({{"loss", "a", falling(100000), false}}))[0]["points"];
  EXPECT_LE(json_points.size(), 1000u);
  EXPECT_EQ(json_points[99][0], 100);
  EXPECT_EQ(json_points.back()[0], 100000);
  EXPECT_LE(count(draw_chart({{"loss", "a", falling(100000), false}}, {}), "L"), 1000u);
}

TEST(ChartTest, GapsSplitTheLineAndLonePointsAreDots) {
  auto points = falling(100);
  points[50].y = kNaN;
  points[52].y = kNaN;
  const std::string svg = draw_chart({{"loss", "a", points, false}}, {});
  EXPECT_EQ(count(svg.substr(svg.find("class=\"line")), "M"), 3u);
  EXPECT_EQ(count(svg, "<circle"), 1u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(ChartTest, SurvivesNothingOneConstantAndHuge) {
  const double huge = std::numeric_limits<double>::max();
  const std::vector<std::vector<Point>> cases = {{},
                                                 {{1, 2}},
                                                 {{0, 0}},
                                                 {{1, kNaN}},
                                                 {{1, 2}, {2, 2}, {3, 2}},
                                                 {{1, -huge}, {2, huge}},
                                                 {{1, 1e-300}, {2, 2e-300}},
                                                 {{1, 1e15}, {2, 1e15 + 1}}};
  for (const auto& points : cases) {
    for (const bool log_x : {false, true}) {
      ChartOptions options;
      options.log_x = log_x;
      options.from_zero = log_x;
      const std::string svg = draw_chart({{"x", "a", points, true}}, options);
      EXPECT_THAT(svg, Not(testing::ContainsRegex("=\"-?(nan|inf)|[ML]-?(nan|inf)")));
      EXPECT_LT(svg.size(), 20000u);
    }
  }
}

TEST(ChartTest, ASpikeDoesNotFlattenTheRest) {
  auto points = falling(1000);
  points[700].y = 1e6;
  const std::string svg = draw_chart({{"loss", "a", points, false}}, {});
  const std::string scale = svg.substr(svg.find("data-scale=\"") + 12);
  EXPECT_LT(json::parse(scale.substr(0, scale.find('"')))[3].get<double>(), 50);
}

TEST(ChartTest, TextIsEscaped) {
  ChartOptions options;
  options.title = "a\"><script>";
  options.reference = 1;
  options.reference_label = "<b>";
  options.mark_x = 1;
  options.mark_label = "<i>";
  const std::vector<ChartLine> lines = {{"</script>", "a", falling(3), true}};
  const std::string svg = draw_chart(lines, options);
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_THAT(svg, Not(HasSubstr("<b>")));
  EXPECT_THAT(svg, Not(HasSubstr("<i>")));
  EXPECT_THAT(chart_points_json(lines), Not(HasSubstr("<")));
  EXPECT_EQ(json::parse(chart_points_json(lines))[0]["label"], "</script>");
}

TEST(ChartTest, TheLogarithmicAxisSpacesDecadesEvenly) {
  ChartOptions options;
  options.log_x = true;
  const std::string svg = draw_chart({{"loss", "a", {{0, 1}, {10, 2}, {100, 3}}, true}}, options);
  std::vector<double> x;
  const std::regex circle("cx=\"([0-9.]+)\"");
  for (std::sregex_iterator it(svg.begin(), svg.end(), circle); it != std::sregex_iterator(); ++it) {
    x.push_back(std::stod((*it)[1]));
  }
  ASSERT_EQ(x.size(), 3u);
  EXPECT_NEAR(x[1] - x[0], x[2] - x[1], 0.2);
}

} // namespace
} // namespace trireme::monitor
