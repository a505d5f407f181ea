#pragma once

#include <trireme/monitor/metrics.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::monitor {

/// Text that the model generated from a prompt. Both are shown as plain text, whatever their content.
struct GeneratedText {
  std::string prompt;
  std::string text;
};

/// A report's content besides the curves. All fields are optional: unknown values are left out.
struct RunSummary {
  std::string title = "Training run";
  std::string status;    ///< "finished", "interrupted at step 812"
  std::string started;   ///< "2026-11-21 09:23 UTC", see format_utc()
  std::string loss_unit; ///< "nats/byte"
  std::string layout;    ///< "data 2, gloo": under the number of ranks
  std::string model;     ///< "GPT, 4 layers, hidden 128": under the number of parameters
  std::string device;    ///< "CPU"
  std::string device_detail;
  std::string speed_unit; ///< "bytes/s" for a byte-level model; default: tokens/s or samples/s, as measured
  int ranks = 0;
  int64_t num_parameters = 0;
  std::optional<double> elapsed_s;       ///< default: from the first to the last line of the metrics
  std::optional<double> unigram_entropy; ///< the loss of a model that knows only symbol frequencies
  std::vector<GeneratedText> samples;
  nlohmann::ordered_json config;
  std::vector<std::pair<std::string, std::string>> environment; ///< {"libtorch", "2.13.0"}, {"cores", "2"}
};

/// Writes report.html from the run's metrics: one file that opens from disk and uses no network (its content security
/// policy forbids it), light or dark as the browser prefers. Curves are readable without scripts; with scripts the
/// pointer shows values.
///
/// Works for any run, also a crashed one of one step and for NaN losses. Curves are reduced to 1000 points;
/// the file is about 200 kB. All text is escaped. Errors: Error when `path` cannot be written.
void write_report(const std::filesystem::path& path, const RunSummary& summary, const std::vector<StepMetrics>& steps);

/// Does the same with the steps of `metrics_file` (read_metrics()); a missing file counts as no steps.
void write_report(const std::filesystem::path& path, const RunSummary& summary,
                  const std::filesystem::path& metrics_file);

/// Marks the end of a run that could not report it: the status "running, step 20, ..." of its report becomes "failed,
/// step 20, ..." (`status`, then the rest). Does nothing without a report. Errors: Error when `path` cannot be
/// written.
void end_report(const std::filesystem::path& path, const std::string& status);

/// The page as HTML text.
std::string render_report(const RunSummary& summary, const std::vector<StepMetrics>& steps);

} // namespace trireme::monitor
