#include <trireme/monitor/series.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace trireme::monitor {

std::vector<Point> downsample(const std::vector<Point>& points, size_t max_points) {
  if (points.size() <= max_points) {
    return points;
  }
  // Up to three points per interval, plus both ends.
  const size_t stretches = (std::max<size_t>(max_points, 8) - 2) / 3;
  const size_t inner = points.size() - 2;
  std::vector<Point> kept{points.front()};
  for (size_t s = 0; s < stretches; ++s) {
    const size_t begin = 1 + inner * s / stretches;
    const size_t end = 1 + inner * (s + 1) / stretches;
    constexpr size_t kNone = std::numeric_limits<size_t>::max();
    size_t low = kNone;
    size_t high = kNone;
    size_t gap = kNone;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(points[i].y)) {
        gap = gap == kNone ? i : gap;
        continue;
      }
      low = low == kNone || points[i].y < points[low].y ? i : low;
      high = high == kNone || points[i].y > points[high].y ? i : high;
    }
    size_t chosen[] = {low, high, gap};
    std::sort(std::begin(chosen), std::end(chosen));
    size_t before = kNone;
    for (const size_t i : chosen) {
      if (i != kNone && i != before) {
        kept.push_back(points[i]);
      }
      before = i;
    }
  }
  kept.push_back(points.back());
  return kept;
}

std::vector<Point> smooth(const std::vector<Point>& points, double window) {
  std::vector<Point> result = points;
  double sum = 0;
  double weight = 0;
  double seen = 0;
  for (Point& point : result) {
    if (std::isfinite(point.y)) {
      const double wide = std::max(1.0, std::min(window, 1 + seen++ / 10));
      const double keep = 1 - 2 / (wide + 1);
      sum = keep * sum + point.y;
      weight = keep * weight + 1;
      point.y = sum / weight;
    }
  }
  return result;
}

double median(std::vector<double> values) {
  values.erase(std::remove_if(values.begin(), values.end(), [](double v) { return !std::isfinite(v); }), values.end());
  if (values.empty()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) {
    return *middle;
  }
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::vector<double> linear_ticks(double low, double high, int wanted) {
  if (!std::isfinite(low) || !std::isfinite(high) || !(low < high)) {
    return {low};
  }
  const double rough = (high - low) / std::max(wanted, 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  // Multiples of the step instead of sums: errors do not accumulate.
  for (double i = first; i * step <= high + step * 1e-9 && ticks.size() < 100; ++i) {
    ticks.push_back(i == 0 ? 0 : i * step);
  }
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> ticks;
  const bool dense = high / low < 200;
  for (double power = std::floor(std::log10(low)); power <= std::ceil(std::log10(high)); ++power) {
    for (const double lead : {1.0, 2.0, 5.0}) {
      const double tick = lead * std::pow(10, power);
      if ((lead == 1 || dense) && tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) {
        ticks.push_back(tick);
      }
    }
  }
  return ticks;
}

std::string format_tick(double value) {
  char text[40];
  const double size = std::abs(value);
  if (size >= 1e15 || (size != 0 && size < 1e-3)) {
    std::snprintf(text, sizeof text, "%.3g", value);
    // "2e-06" -> "2e-6"
    std::string short_text = text;
    if (const size_t e = short_text.find('e');
        e != std::string::npos && short_text.size() > e + 3 && short_text[e + 2] == '0') {
      short_text.erase(e + 2, 1);
    }
    return short_text;
  }
  const char* unit = "";
  for (const auto& [scale, name] : {std::pair{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e4, "k"}}) {
    if (size >= scale) {
      value /= scale == 1e4 ? 1e3 : scale;
      unit = name;
      break;
    }
  }
  std::snprintf(text, sizeof text, "%.6g", value);
  std::string number = text;
  if (*unit == '\0' && size >= 1000 && number.find('.') == std::string::npos && number.find('e') == std::string::npos) {
    number.insert(number.size() - 3, 1, ',');
  }
  return number + unit;
}

} // namespace trireme::monitor
