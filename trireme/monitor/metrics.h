#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::monitor {

/// Measurements of one optimizer step. Values that were not measured are empty.
///
/// Units: losses in nats (a byte for text, a sample otherwise), times as named, bytes.
struct StepMetrics {
  int64_t step = 0;                   ///< 1 after the first optimizer step; 0 is before it
  std::optional<double> loss;         ///< mean over micro-batches and data ranks
  std::optional<double> val_loss;     ///< if evaluated
  std::optional<double> val_accuracy; ///< 0..1, if evaluated
  std::optional<double> lr;
  std::optional<double> grad_norm; ///< before clipping
  std::optional<double> loss_scale;
  std::optional<double> tokens_per_s;  ///< all ranks together
  std::optional<double> samples_per_s; ///< all ranks together, if there are no tokens
  std::optional<double> step_ms;
  std::optional<double> comm_wait_ms;       ///< part of step_ms: waiting for communication that nothing overlaps
  std::optional<double> wall_time;          ///< seconds since 1970; MetricsWriter fills it in
  std::optional<int64_t> peak_rss_bytes;    ///< of the largest rank so far
  std::optional<int64_t> device_peak_bytes; ///< the same of a device's memory, where ranks train on one
  std::optional<int64_t> activation_bytes;  ///< the most that activations of parts had at a time in this step, on rank
                                            ///< 0; with "activation_checkpointing"
  std::optional<int64_t> comm_bytes;        ///< sent by one rank during this step
  std::map<std::string, int64_t> comm_bytes_by; ///< the same by the axes of the mesh that were used; empty: one axis
  std::optional<int64_t> offload_read_bytes; ///< from files of masters, states and shards during this step, on rank 0;
                                             ///< where they are in files
  std::optional<int64_t> offload_write_bytes;
  std::optional<int64_t>
      host_syncs; ///< how often the host waited for its device during this step, on rank 0; where ranks train on one
};

/// Writes one line of metrics.jsonl, without the line end: one JSON object, keys in the order above.
///
/// JSON has no NaN, so a value that is not finite becomes null and a second key says which
/// one it was: {"loss": null, "loss_text": "NaN"}, "Infinity" or "-Infinity".
std::string metrics_line(const StepMetrics& metrics);

/// Reads such a line; nullopt if it is cut off or invalid. Unknown keys are skipped.
std::optional<StepMetrics> parse_metrics_line(std::string_view line);

/// Reads metrics.jsonl in increasing step order.
///
/// Lines that cannot be read (a crash cuts the last one) are skipped. If a step
/// repeats, as after a restart, the later line and those after it count.
/// Errors: InputError when the file cannot be read at all.
std::vector<StepMetrics> read_metrics(const std::filesystem::path& path);

} // namespace trireme::monitor
