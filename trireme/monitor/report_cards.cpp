#include <trireme/monitor/report_cards.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>
#include <trireme/monitor/html.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <numeric>

namespace trireme::monitor {
namespace {

using Steps = std::vector<StepMetrics>;

template <typename Value>
std::vector<Point> series(const Steps& steps, std::optional<Value> StepMetrics::* member) {
  std::vector<Point> points;
  for (const StepMetrics& step : steps) {
    if (step.*member) {
      points.push_back({static_cast<double>(step.step), static_cast<double>(*(step.*member))});
    }
  }
  return points;
}

std::vector<double> values_of(const std::vector<Point>& points) {
  std::vector<double> values;
  std::transform(points.begin(), points.end(), std::back_inserter(values), [](const Point& p) { return p.y; });
  return values;
}

const Point* best_of(const std::vector<Point>& points, bool highest) {
  const Point* best = nullptr;
  for (const Point& point : points) {
    if (std::isfinite(point.y) && (best == nullptr || (highest ? point.y > best->y : point.y < best->y))) {
      best = &point;
    }
  }
  return best;
}

std::string step_text(double step) {
  return std::to_string(static_cast<int64_t>(step));
}

std::string card(const std::string& title, const std::string& value, const std::string& unit, const std::string& below,
                 const char* style = "") {
  std::string html = concat("<div class=\"card ", style, "\"><h2>", escape_html(title), "</h2><b>", escape_html(value));
  if (!unit.empty()) {
    html += concat(" <small>", escape_html(unit), "</small>");
  }
  return html + concat("</b><span>", escape_html(below), "</span></div>\n");
}

std::string loss_cards(const RunSummary& summary, const Curves& curves) {
  std::string html;
  if (!curves.val_accuracy.empty()) {
    const Point* best = best_of(curves.val_accuracy, /*highest=*/true);
    html += card("Validation accuracy", decimals(curves.val_accuracy.back().y * 100, 2), "%",
                 best == nullptr ? "" : concat("best ", decimals(best->y * 100, 2), " % at step ", step_text(best->x)),
                 "main");
  }
  if (!curves.val_loss.empty()) {
    std::string below;
    if (summary.unigram_entropy) {
      below = concat("unigram entropy ", decimals(*summary.unigram_entropy, 3));
    } else if (const Point* best = best_of(curves.val_loss, /*highest=*/false)) {
      below = concat("best ", decimals(best->y, 3), " at step ", step_text(best->x));
    }
    html += card("Validation loss", decimals(curves.val_loss.back().y, 3), summary.loss_unit, below,
                 curves.val_accuracy.empty() ? "main" : "");
  }
  if (!curves.loss.empty()) {
    const bool broken = !std::isfinite(curves.loss.back().y);
    const bool smoothed = curves.smooth_loss.back().y != curves.loss.back().y;
    html += card("Training loss", decimals(broken ? curves.loss.back().y : curves.smooth_loss.back().y, 3),
                 broken ? "" : summary.loss_unit,
                 concat(broken     ? "began at "
                        : smoothed ? "smoothed; began at "
                                   : "began at ",
                        decimals(curves.loss.front().y, 3)),
                 "train");
  }
  return html;
}

std::string speed_cards(const RunSummary& summary, const Steps& steps, const Curves& curves) {
  std::string html;
  if (const double speed = median(values_of(curves.speed())); std::isfinite(speed)) {
    html += card("Throughput", format_count(speed), speed_unit(summary, curves),
                 summary.ranks > 1 ? concat("median; ", format_count(speed / summary.ranks), " a rank") : "median");
  }
  std::optional<double> elapsed = summary.elapsed_s;
  if (!elapsed && steps.size() > 1 && steps.front().wall_time && steps.back().wall_time) {
    elapsed = *steps.back().wall_time - *steps.front().wall_time;
  }
  const double step_ms = median(values_of(curves.step_ms));
  if (elapsed && std::isfinite(*elapsed) && *elapsed >= 0) {
    const std::string pace = std::isfinite(step_ms) ? concat(", median ", format_seconds(step_ms / 1000)) : "";
    html += card("Time", format_seconds(*elapsed), "", steps.empty() ? "" : concat(steps.back().step, " steps", pace));
  }
  return html;
}

std::string machine_cards(const RunSummary& summary, const Curves& curves) {
  std::string html;
  if (summary.ranks > 0) {
    html += card("Ranks", std::to_string(summary.ranks), "", summary.layout);
  }
  if (summary.num_parameters > 0) {
    html += card("Parameters", format_count(summary.num_parameters), "", summary.model);
  }
  if (!summary.device.empty()) {
    html += card("Device", summary.device, "", summary.device_detail);
  }
  if (const Point* peak = best_of(curves.memory, /*highest=*/true)) {
    html += card("Peak memory", format_bytes(peak->y), "", "of the largest rank");
  }
  if (const Point* peak = best_of(curves.device_memory, /*highest=*/true)) {
    html += card("Peak device memory", format_bytes(peak->y), "", "of the largest rank");
  }
  if (!curves.host_syncs.empty()) {
    html += card("Host waits", decimals(median(values_of(curves.host_syncs)), 0), "a step",
                 "for the device, rank 0; median");
  }
  if (!curves.traffic.empty()) {
    const auto bytes = values_of(curves.traffic);
    html += card("Sent", format_bytes(std::accumulate(bytes.begin(), bytes.end(), 0.0)), "",
                 concat("a rank; ", format_bytes(median(bytes)), " a step"));
  }
  return html;
}

} // namespace

Curves::Curves(const Steps& steps)
    : loss(series(steps, &StepMetrics::loss)),
      smooth_loss(smooth(loss, std::clamp(static_cast<double>(loss.size()) / 40, 1.0, 200.0))),
      val_loss(series(steps, &StepMetrics::val_loss)),
      val_accuracy(series(steps, &StepMetrics::val_accuracy)),
      lr(series(steps, &StepMetrics::lr)),
      grad_norm(series(steps, &StepMetrics::grad_norm)),
      loss_scale(series(steps, &StepMetrics::loss_scale)),
      tokens(series(steps, &StepMetrics::tokens_per_s)),
      samples(series(steps, &StepMetrics::samples_per_s)),
      step_ms(series(steps, &StepMetrics::step_ms)),
      memory(series(steps, &StepMetrics::peak_rss_bytes)),
      device_memory(series(steps, &StepMetrics::device_peak_bytes)),
      traffic(series(steps, &StepMetrics::comm_bytes)),
      host_syncs(series(steps, &StepMetrics::host_syncs)) {}

std::string speed_unit(const RunSummary& summary, const Curves& curves) {
  return !summary.speed_unit.empty() ? summary.speed_unit : curves.tokens.empty() ? "samples/s" : "tokens/s";
}

std::string decimals(double value, int count) {
  char text[64];
  std::snprintf(text, sizeof text, std::abs(value) < 1e4 ? "%.*f" : "%.*e", count, value);
  return std::isfinite(value) ? text : std::isnan(value) ? "NaN" : value > 0 ? "infinite" : "-infinite";
}

std::string report_cards(const RunSummary& summary, const Steps& steps, const Curves& curves) {
  return concat("<section class=\"cards\">\n", loss_cards(summary, curves), speed_cards(summary, steps, curves),
                machine_cards(summary, curves), "</section>\n");
}

} // namespace trireme::monitor
