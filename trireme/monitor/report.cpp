#include <trireme/monitor/report.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/monitor/chart.h>
#include <trireme/monitor/html.h>
#include <trireme/monitor/report_assets.h>
#include <trireme/monitor/report_cards.h>
#include <trireme/monitor/series.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace trireme::monitor {
namespace {

using Steps = std::vector<StepMetrics>;

constexpr int kSmallWidth = 520;
constexpr int kSmallHeight = 210;
constexpr int kNarrowHeight = 340;
constexpr const char* kBadge = "<span class=\"badge";

std::string step_text(double step) {
  return std::to_string(static_cast<int64_t>(step));
}

/// A panel with a title, a legend if there are several curves, and the drawing; `tabs` adds the drawing over the
/// logarithm of the step.
std::string figure(const std::vector<ChartLine>& lines, const ChartOptions& options, bool tabs = false) {
  std::string html = "<section class=\"panel\">\n";
  if (tabs) {
    html +=
        "<input class=\"choice pick-linear\" type=\"radio\" name=\"x\" id=\"x-linear\" checked>"
        "<input class=\"choice pick-log\" type=\"radio\" name=\"x\" id=\"x-log\">\n";
  }
  html += concat("<div class=\"caption\"><h2>", escape_html(options.title), "</h2>");
  if (!options.unit.empty()) {
    html += concat("<span>", escape_html(options.unit), "</span>");
  }
  for (const ChartLine& line : lines) {
    if (lines.size() > 1 && !line.points.empty()) {
      html += concat("<span class=\"legend\"><i class=\"", escape_html(line.style), "\"></i>", escape_html(line.label),
                     "</span>");
    }
  }
  if (tabs) {
    html +=
        "<span class=\"tabs\"><label class=\"to-linear\" for=\"x-linear\">linear</label>"
        "<label class=\"to-log\" for=\"x-log\">log</label></span>";
  }
  html += "</div>\n<div class=\"plots\">\n";
  const auto draw = [&](ChartOptions drawing) {
    html += draw_chart(lines, drawing);
    if (tabs) {
      drawing.log_x = true;
      html += draw_chart(lines, drawing);
    }
  };
  draw(options);
  if (options.width > kSmallWidth) { // again for narrow windows, in which the wide one's text would be too small
    ChartOptions narrow = options;
    narrow.width = kSmallWidth;
    narrow.height = kNarrowHeight;
    narrow.narrow = true;
    draw(narrow);
  }
  return html +
         concat("<script type=\"application/json\">", chart_points_json(lines), "</script>\n</div>\n</section>\n");
}

std::string loss_figure(const RunSummary& summary, const Curves& curves) {
  if (curves.loss.empty() && curves.val_loss.empty()) {
    return "<section class=\"panel\"><h2>Loss</h2><p class=\"empty\">No step has been recorded yet.</p></section>\n";
  }
  std::vector<ChartLine> lines;
  if (curves.loss.size() >= 40) {
    lines.push_back({"training, each step", "raw", curves.loss, false});
    lines.push_back({"training, smoothed", "a", curves.smooth_loss, false});
  } else {
    lines.push_back({"training", "a", curves.loss, true});
  }
  lines.push_back({"validation", "b", curves.val_loss, true});
  ChartOptions options;
  options.title = "Loss";
  options.unit = summary.loss_unit;
  if (summary.unigram_entropy && std::isfinite(*summary.unigram_entropy)) {
    options.reference = summary.unigram_entropy;
    options.reference_label = concat("unigram entropy ", decimals(*summary.unigram_entropy, 2));
  }
  const auto broken =
      std::find_if(curves.loss.begin(), curves.loss.end(), [](const Point& p) { return !std::isfinite(p.y); });
  if (broken != curves.loss.end()) {
    options.mark_x = broken->x;
    options.mark_label = concat("not finite from step ", step_text(broken->x));
    if (std::any_of(broken, curves.loss.end(), [](const Point& p) { return std::isfinite(p.y); })) {
      options.mark_label = concat("first not finite at step ", step_text(broken->x));
    }
  }
  return figure(lines, options, /*tabs=*/curves.loss.size() >= 10);
}

std::string small_figure(const ChartOptions& what, const std::vector<Point>& points, const char* style,
                         bool smoothed = false) {
  ChartOptions options = what;
  options.width = kSmallWidth;
  options.height = kSmallHeight;
  const std::string label = lower(what.title);
  std::vector<ChartLine> lines;
  if (smoothed && points.size() >= 40) {
    lines.push_back({"each step", "raw", points, false});
    lines.push_back({"smoothed", style, smooth(points, static_cast<double>(points.size()) / 40), false});
  } else {
    lines.push_back({label, style, points, points.size() <= 40});
  }
  return figure(lines, options);
}

std::vector<Point> scaled(std::vector<Point> points, double factor) {
  for (Point& point : points) {
    point.y *= factor;
  }
  return points;
}

std::string small_figures(const RunSummary& summary, const Curves& curves) {
  std::vector<std::string> figures;
  const auto add = [&](const char* title, const std::string& unit, const std::vector<Point>& points, const char* style,
                       bool from_zero, bool smoothed = false) {
    if (!points.empty()) {
      ChartOptions options;
      options.title = title;
      options.unit = unit;
      options.from_zero = from_zero;
      figures.push_back(small_figure(options, points, style, smoothed));
    }
  };
  add("Validation accuracy", "%", scaled(curves.val_accuracy, 100), "b", false);
  add("Learning rate", "", curves.lr, "c", true);
  add("Gradient norm", "before clipping", curves.grad_norm, "a", true, /*smoothed=*/true);
  add("Throughput", speed_unit(summary, curves), curves.speed(), "a", true, /*smoothed=*/true);
  add("Loss scale", "", curves.loss_scale, "c", true);
  add("Peak device memory", "MB, largest rank", scaled(curves.device_memory, 1e-6), "c", true);
  // One of these fills the last row of two.
  if (figures.size() % 2 == 1) {
    add("Peak memory", "MB, largest rank", scaled(curves.memory, 1e-6), "c", true);
  }
  if (figures.size() % 2 == 1) {
    add("Step time", "ms", curves.step_ms, "c", true, /*smoothed=*/true);
  }
  std::string html = "<div class=\"grid2\">\n";
  for (const std::string& one : figures) {
    html += one;
  }
  return html + "</div>\n";
}

std::string samples_panel(const std::vector<GeneratedText>& samples) {
  if (samples.empty()) {
    return "";
  }
  std::string html = "<section class=\"panel\"><h2>What the model writes</h2>\n";
  for (const GeneratedText& sample : samples) {
    // The line end after <pre> keeps one at the start of the prompt: HTML drops the first.
    html += concat("<pre class=\"sample\">\n<mark>", escape_html(sample.prompt), "</mark>", escape_html(sample.text),
                   "</pre>\n");
  }
  return html + "</section>\n";
}

std::string config_panel(const nlohmann::ordered_json& config) {
  if (config.empty()) {
    return "";
  }
  return concat("<section class=\"panel\"><h2>Configuration</h2>\n<pre>\n", json_as_html(config), "</pre></section>\n");
}

std::string environment_panel(const RunSummary& summary) {
  if (summary.environment.empty()) {
    return "";
  }
  std::string html = "<section class=\"panel\"><h2>Environment</h2>\n<table>\n";
  for (const auto& [name, value] : summary.environment) {
    html += concat("<tr><th>", escape_html(name), "</th><td>", escape_html(value), "</td></tr>\n");
  }
  return html + "</table></section>\n";
}

std::string header(const RunSummary& summary) {
  std::string html = concat("<header><h1>", escape_html(summary.title), "</h1>");
  if (!summary.status.empty()) {
    const bool good = summary.status.starts_with("finished") || summary.status.starts_with("running");
    html += concat(kBadge, good ? "" : " bad", "\">", escape_html(summary.status), "</span>");
  }
  if (!summary.started.empty()) {
    html += concat("<p>started ", escape_html(summary.started), "</p>");
  }
  return html + "</header>\n";
}

} // namespace

std::string render_report(const RunSummary& summary, const Steps& steps) {
  const Curves curves(steps);
  return concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
      escape_html(summary.title), "</title>\n<style>", kReportStyle, "</style>\n</head>\n<body>\n<main>\n",
      header(summary), report_cards(summary, steps, curves), loss_figure(summary, curves),
      small_figures(summary, curves), samples_panel(summary.samples), "<div class=\"grid2\">\n",
      config_panel(summary.config), environment_panel(summary), "</div>\n<footer>Trireme</footer>\n</main>\n<script>",
      kReportScript, "</script>\n</body>\n</html>\n");
}

void write_report(const std::filesystem::path& path, const RunSummary& summary, const Steps& steps) {
  write_file_atomically(path, render_report(summary, steps));
}

void write_report(const std::filesystem::path& path, const RunSummary& summary,
                  const std::filesystem::path& metrics_file) {
  std::error_code error;
  write_report(path, summary, std::filesystem::exists(metrics_file, error) ? read_metrics(metrics_file) : Steps());
}

void end_report(const std::filesystem::path& path, const std::string& status) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return;
  }
  std::string html = read_file(path);
  const std::string running = concat(kBadge, "\">running");
  const size_t begin = html.find(running);
  if (begin == std::string::npos) {
    return;
  }
  html.replace(begin, running.size(), concat(kBadge, " bad\">", escape_html(status)));
  write_file_atomically(path, html);
}

} // namespace trireme::monitor
