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
  std::optional<double> tokens_per_s;  ///< of all ranks
  std::optional<double> samples_per_s; ///< of all ranks, if there are no tokens
  std::optional<double> mfu;           ///< 0..1, model FLOPs of a rank per second over its GPU's peak; if that is known
  std::optional<double> step_ms;       ///< from the end of the step before, without evaluation and checkpoints
  std::optional<double> comm_wait_ms;  ///< part of step_ms: waiting for communication that nothing overlaps
  std::optional<double> wall_time;     ///< seconds since 1970; MetricsWriter fills it in
  std::optional<int64_t> peak_rss_bytes;        ///< of the largest rank so far
  std::optional<int64_t> device_peak_bytes;     ///< the same for GPU memory, if ranks train on GPUs
  std::optional<int64_t> activation_bytes;      ///< peak memory of the parts' activations in this step, on rank
                                                ///< 0; with "activation_checkpointing"
  std::optional<int64_t> comm_bytes;            ///< sent by one rank during this step
  std::map<std::string, int64_t> comm_bytes_by; ///< the same by the axes of the mesh that were used; empty: one axis
  std::optional<int64_t> offload_read_bytes; ///< from files of masters, states and shards during this step, on rank 0;
                                             ///< if they are in files
  std::optional<int64_t> offload_write_bytes;
  std::optional<int64_t>
      host_syncs; ///< waits of the host for its GPU during this step, on rank 0; if ranks train on GPUs
};

/// Writes one line of metrics.jsonl, without the line end: one JSON object, keys in the order above.
///
/// JSON has no NaN, so a value that is not finite becomes null and a second key holds it as text: {"loss": null,
/// "loss_text": "NaN"}, "Infinity" or "-Infinity".
std::string metrics_line(const StepMetrics& metrics);

/// Reads such a line; nullopt if it is cut off or invalid. Unknown keys are skipped.
std::optional<StepMetrics> parse_metrics_line(std::string_view line);

/// Reads metrics.jsonl in increasing step order.
///
/// Skips lines that cannot be read (a crash cuts the last one). If a step repeats, as after a
/// restart, the later line and those after it count. Errors: InputError when the file cannot be
/// read.
std::vector<StepMetrics> read_metrics(const std::filesystem::path& path);

} // namespace trireme::monitor
