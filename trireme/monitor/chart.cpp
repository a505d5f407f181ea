#include <trireme/monitor/chart.h>

#include <trireme/base/error.h>
#include <trireme/monitor/html.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace trireme::monitor {
namespace {

constexpr size_t kMaxPoints = 1000;
constexpr size_t kWholeStart = 100;
constexpr double kTop = 14;
constexpr double kRight = 18;
constexpr double kBottom = 34;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    if (std::isfinite(value)) {
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  bool empty() const { return !(low <= high); }
};

std::string one_decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

/// The range of the line, or of its bulk if a few values are many times the bulk's height apart from it.
Range bulk_range(const std::vector<Point>& points) {
  std::vector<double> values;
  for (const Point& point : points) {
    if (std::isfinite(point.y)) {
      values.push_back(point.y);
    }
  }
  Range range;
  if (values.empty()) {
    return range;
  }
  std::sort(values.begin(), values.end());
  range = {values.front(), values.back()};
  const size_t n = values.size();
  if (n >= 50) {
    const double low = values[n / 50];
    const double high = values[n - 1 - n / 50];
    const double reach = 8 * (high - low);
    if (reach > 0) {
      range.low = std::max(range.low, low - reach);
      range.high = std::min(range.high, high + reach);
    }
  }
  return range;
}

/// At most kMaxPoints. The first hundred stay: curves fall fastest there, and a logarithmic axis shows each.
std::vector<Point> reduced(const std::vector<Point>& points) {
  if (points.size() <= kMaxPoints) {
    return points;
  }
  const auto start = points.begin() + kWholeStart;
  std::vector<Point> kept(points.begin(), start);
  const std::vector<Point> rest = downsample({start, points.end()}, kMaxPoints - kWholeStart);
  kept.insert(kept.end(), rest.begin(), rest.end());
  return kept;
}

/// Steps are whole numbers, so are their ticks.
std::vector<double> whole_ticks(std::vector<double> ticks) {
  ticks.erase(std::remove_if(ticks.begin(), ticks.end(), [](double tick) { return tick != std::round(tick); }),
              ticks.end());
  return ticks;
}

class Scale {
 public:
  Scale(const std::vector<ChartLine>& lines, const ChartOptions& options) : log_x_(options.log_x) {
    for (const ChartLine& line : lines) {
      for (const Point& point : line.points) {
        x_.include(log_x_ ? std::max(point.x, 1.0) : point.x);
      }
      const Range bulk = bulk_range(line.points);
      y_.include(bulk.low);
      y_.include(bulk.high);
    }
    if (options.reference) {
      y_.include(*options.reference);
    }
    if (options.from_zero) {
      y_.include(0);
    }
    pad_ranges(options.from_zero);
    y_ticks_ = linear_ticks(y_.low, y_.high, options.height > 250 ? 6 : 4);
    size_t widest = 0;
    for (const double tick : y_ticks_) {
      widest = std::max(widest, format_tick(tick).size());
    }
    left_ = 18 + 8.0 * static_cast<double>(widest);
    right_ = options.width - kRight;
    bottom_ = options.height - kBottom;
    const int wanted = options.width > 700 ? 10 : 5;
    x_ticks_ = log_x_ ? log_ticks(x_.low, x_.high) : whole_ticks(linear_ticks(x_.low, x_.high, wanted));
  }

  double x(double value) const {
    const double part = log_x_ ? std::log(std::max(value, 1.0) / x_.low) / std::log(x_.high / x_.low)
                               : (value - x_.low) / (x_.high - x_.low);
    return left_ + part * (right_ - left_);
  }
  double y(double value) const {
    // Clamped far outside: the clip path hides it, and numbers stay short. Halved, because the full range of doubles
    // overflows.
    const double part = std::clamp((value / 2 - y_.low / 2) / (y_.high / 2 - y_.low / 2), -2.0, 3.0);
    return bottom_ - part * (bottom_ - kTop);
  }
  const std::vector<double>& x_ticks() const { return x_ticks_; }
  const std::vector<double>& y_ticks() const { return y_ticks_; }
  double left() const { return left_; }
  double right() const { return right_; }
  double bottom() const { return bottom_; }
  std::string attributes() const {
    const nlohmann::json numbers = {x_.low, x_.high, y_.low, y_.high, left_, right_, kTop, bottom_, log_x_ ? 1 : 0};
    return concat("data-scale=\"", numbers.dump(), "\"");
  }

 private:
  /// Gives both ranges a width and y some air.
  void pad_ranges(bool from_zero) {
    if (x_.empty()) {
      x_ = {log_x_ ? 1.0 : 0.0, log_x_ ? 2.0 : 1.0};
    } else if (x_.low == x_.high) {
      x_ = log_x_ ? Range{x_.low, x_.high * 2} : Range{x_.low - 1, x_.high + 1};
    }
    if (y_.empty()) {
      y_ = {0, 1};
    }
    double air = (y_.high - y_.low) * 0.05;
    if (!(air > 0)) {
      air = std::max(std::abs(y_.low) * 0.1, 1e-12);
    }
    if (!std::isfinite(air)) {
      air = 0;
    }
    y_.low -= from_zero && y_.low == 0 ? 0 : air;
    y_.high += air;
  }

  bool log_x_;
  Range x_;
  Range y_;
  std::vector<double> x_ticks_;
  std::vector<double> y_ticks_;
  double left_ = 0;
  double right_ = 0;
  double bottom_ = 0;
};

void append_axes(std::string& svg, const Scale& scale, const ChartOptions& options) {
  for (const double tick : scale.y_ticks()) {
    const std::string y = one_decimal(scale.y(tick));
    svg += concat("<line class=\"grid\" x1=\"", one_decimal(scale.left()), "\" x2=\"", one_decimal(scale.right()),
                  "\" y1=\"", y, "\" y2=\"", y, "\"/><text class=\"tick\" text-anchor=\"end\" x=\"",
                  one_decimal(scale.left() - 8), "\" y=\"", one_decimal(scale.y(tick) + 4), "\">", format_tick(tick),
                  "</text>\n");
  }
  const std::string bottom = one_decimal(scale.bottom());
  svg += concat("<line class=\"axis\" x1=\"", one_decimal(scale.left()), "\" x2=\"", one_decimal(scale.right()),
                "\" y1=\"", bottom, "\" y2=\"", bottom, "\"/>\n");
  for (const double tick : scale.x_ticks()) {
    const std::string x = one_decimal(scale.x(tick));
    svg += concat("<line class=\"axis\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", bottom, "\" y2=\"",
                  one_decimal(scale.bottom() + 4), "\"/>");
    // The end of the axis is left for its name.
    if (scale.x(tick) < scale.right() - 8 * static_cast<double>(options.x_label.size()) - 8) {
      svg += concat("<text class=\"tick\" text-anchor=\"middle\" x=\"", x, "\" y=\"", one_decimal(scale.bottom() + 19),
                    "\">", format_tick(tick), "</text>\n");
    }
  }
  svg += concat("<text class=\"tick\" text-anchor=\"end\" x=\"", one_decimal(scale.right()), "\" y=\"",
                one_decimal(scale.bottom() + 19), "\">", escape_html(options.x_label), "</text>\n");
}

void append_line(std::string& svg, const Scale& scale, const ChartLine& line, const std::vector<Point>& points) {
  std::string path;
  std::string dots;
  const std::string style = escape_html(line.style);
  const bool marked = line.dots && points.size() <= 80;
  for (size_t i = 0; i < points.size(); ++i) {
    if (!std::isfinite(points[i].y)) {
      continue;
    }
    const bool begins = i == 0 || !std::isfinite(points[i - 1].y);
    const bool ends = i + 1 == points.size() || !std::isfinite(points[i + 1].y);
    const std::string x = one_decimal(scale.x(points[i].x));
    const std::string y = one_decimal(scale.y(points[i].y));
    path += concat(begins ? "M" : "L", x, ' ', y);
    if (marked || (begins && ends)) { // a lone point would be invisible as a line
      dots += concat("<circle class=\"dot ", style, "\" cx=\"", x, "\" cy=\"", y, "\" r=\"3.5\"/>");
    }
  }
  if (!path.empty()) {
    svg += concat("<path class=\"line ", style, "\" d=\"", path, "\"/>\n");
  }
  svg += dots;
}

void append_marks(std::string& svg, const Scale& scale, const ChartOptions& options) {
  if (options.reference) {
    const double y = scale.y(*options.reference);
    svg += concat("<line class=\"reference\" x1=\"", one_decimal(scale.left()), "\" x2=\"", one_decimal(scale.right()),
                  "\" y1=\"", one_decimal(y), "\" y2=\"", one_decimal(y),
                  "\"/><text class=\"note\" text-anchor=\"end\" x=\"", one_decimal(scale.right() - 6), "\" y=\"",
                  one_decimal(y - 6), "\">", escape_html(options.reference_label), "</text>\n");
  }
  if (options.mark_x) {
    const double x = scale.x(*options.mark_x);
    const bool late = x > (scale.left() + scale.right()) / 2;
    svg +=
        concat("<line class=\"mark\" x1=\"", one_decimal(x), "\" x2=\"", one_decimal(x), "\" y1=\"", one_decimal(kTop),
               "\" y2=\"", one_decimal(scale.bottom()), "\"/><text class=\"note bad\" text-anchor=\"",
               late ? "end" : "start", "\" x=\"", one_decimal(x + (late ? -6 : 6)), "\" y=\"", one_decimal(kTop + 12),
               "\">", escape_html(options.mark_label), "</text>\n");
  }
}

} // namespace

std::string draw_chart(const std::vector<ChartLine>& lines, const ChartOptions& options) {
  const Scale scale(lines, options);
  // Every svg of a page needs its own clip path name; the geometry gives one that is right even if it repeats.
  const std::string clip = concat("clip-", options.width, '-', options.height, '-', one_decimal(scale.left()));
  std::string svg = concat("<svg class=\"", options.log_x ? "log" : "linear", options.width > 700 ? " wide" : "",
                           options.narrow ? " narrow" : "", "\" viewBox=\"0 0 ", options.width, ' ', options.height,
                           "\" role=\"img\" aria-label=\"", escape_html(options.title), "\" ", scale.attributes(),
                           ">\n<clipPath id=\"", clip, "\"><rect x=\"", one_decimal(scale.left() - 6), "\" y=\"",
                           one_decimal(kTop - 6), "\" width=\"", one_decimal(scale.right() - scale.left() + 12),
                           "\" height=\"", one_decimal(scale.bottom() - kTop + 6), "\"/></clipPath>\n");
  append_axes(svg, scale, options);
  svg += concat("<g clip-path=\"url(#", clip, ")\">\n");
  for (const ChartLine& line : lines) {
    append_line(svg, scale, line, reduced(line.points));
  }
  svg += "</g>\n";
  append_marks(svg, scale, options);
  return svg + "</svg>\n";
}

std::string chart_points_json(const std::vector<ChartLine>& lines) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ChartLine& line : lines) {
    auto points = nlohmann::ordered_json::array();
    for (const Point& point : reduced(line.points)) {
      char rounded[32];
      std::snprintf(rounded, sizeof rounded, "%.6g", point.y);
      points.push_back({point.x, std::isfinite(point.y) ? nlohmann::ordered_json::parse(rounded) : nullptr});
    }
    all.push_back({{"label", clean_utf8(line.label)}, {"style", line.style}, {"points", std::move(points)}});
  }
  std::string text = all.dump();
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos; at += 6) {
    text.replace(at, 1, "\\u003c"); // "</script>" would end the element
  }
  return text;
}

} // namespace trireme::monitor
