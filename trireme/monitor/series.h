#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trireme::monitor {

/// One point of a curve; y may be NaN or infinite, then the curve has a gap there.
struct Point {
  double x = 0;
  double y = 0;
};

/// Reduces to at most `max_points` (>= 8). Keeps the first and the last point, and the lowest and highest of each
/// interval, so that no spike is lost. An interval with a value that is not finite also keeps one of these. Points must
/// be sorted by x. Returns a short input unchanged. Cost: one pass.
std::vector<Point> downsample(const std::vector<Point>& points, size_t max_points);

/// Computes an exponential moving average over about `window` points, with Adam's bias correction for the first values.
/// Near the start the window is a tenth of the points so far, to follow a steep first descent. Values that are not
/// finite stay unchanged and are left out of the average.
std::vector<Point> smooth(const std::vector<Point>& points, double window);

/// Median of the finite values; NaN when there are none.
double median(std::vector<double> values);

/// Round numbers (1, 2 or 5 times a power of ten apart) within [low, high], about `wanted` of them.
std::vector<double> linear_ticks(double low, double high, int wanted);
/// Powers of ten within [low, high], low > 0; in a short range also 2 and 5 times them.
std::vector<double> log_ticks(double low, double high);

/// "0.003", "2e-6", "1,200", "40k", "3.5M": a tick of an axis, exact for round numbers.
std::string format_tick(double value);

} // namespace trireme::monitor
