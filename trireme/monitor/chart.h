#pragma once

#include <trireme/monitor/series.h>

#include <optional>
#include <string>
#include <vector>

namespace trireme::monitor {

struct ChartLine {
  std::string label;
  std::string style;         ///< CSS class: a (blue), b (orange), c (teal), raw (faint, behind)
  std::vector<Point> points; ///< sorted by x, any number
  bool dots = false;         ///< marks the points: few and measured, not a dense curve
};

struct ChartOptions {
  std::string title;
  std::string unit; ///< shown beside the title: "nats/byte"
  std::string x_label = "step";
  int width = 1060; ///< of the drawing, in CSS pixels at full size; it scales down
  int height = 360;
  bool log_x = false; ///< points with x < 1 are drawn at 1
  bool from_zero = false;
  bool narrow = false;             ///< shown in narrow windows instead of the wide one
  std::optional<double> reference; ///< a dashed level...
  std::string reference_label;     ///< ...and its name
  std::optional<double> mark_x;    ///< a dotted upright...
  std::string mark_label;          ///< ...and its event
};

/// Draws the lines as one inline <svg> without external references. Every curve is reduced to at most 1000 points,
/// and values that are not finite are gaps. Rare spikes far outside the rest are cut off at the edge, so that they do
/// not flatten the curve. The <svg> has the scale as data- attributes, for a script's tooltip. Empty lines are
/// allowed.
std::string draw_chart(const std::vector<ChartLine>& lines, const ChartOptions& options);

/// Writes the same (reduced) curves as JSON for the tooltip: [{"label":..,"style":..,"points":[[x,y],..]},..],
/// safe inside <script>.
std::string chart_points_json(const std::vector<ChartLine>& lines);

} // namespace trireme::monitor
