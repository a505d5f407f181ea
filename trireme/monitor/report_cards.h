#pragma once

#include <trireme/monitor/report.h>
#include <trireme/monitor/series.h>

#include <string>
#include <vector>

namespace trireme::monitor {

/// The curves of a run, from its steps.
struct Curves {
  explicit Curves(const std::vector<StepMetrics>& steps);

  /// Tokens per second, or samples if there are no tokens.
  const std::vector<Point>& speed() const { return tokens.empty() ? samples : tokens; }

  std::vector<Point> loss, smooth_loss, val_loss, val_accuracy, lr, grad_norm, loss_scale, tokens, samples, step_ms,
      memory, device_memory, traffic, host_syncs;
};

/// "tokens/s", "samples/s" or the summary's unit.
std::string speed_unit(const RunSummary& summary, const Curves& curves);

/// "1.490"; "NaN" and the like for values that are not finite.
std::string decimals(double value, int count);

/// Writes the row of key figures: <div class="card"> for each that is known.
std::string report_cards(const RunSummary& summary, const std::vector<StepMetrics>& steps, const Curves& curves);

} // namespace trireme::monitor
