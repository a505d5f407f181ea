#pragma once

#include <trireme/monitor/metrics.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::monitor {

/// Writes a TensorBoard event file (rank 0 only), encoded by hand: TFRecord frames around Event messages
/// of tensorboard/compat/proto/event.proto. No TensorFlow, no protobuf.
///
/// The file is events.out.tfevents.<seconds>.<host>.<pid>.<number> in `folder`. A resumed run adds one, which tells
/// TensorBoard to drop events of earlier files after `resumed_step`.
///
/// Events are buffered and written every two seconds, at 64 KiB, at flush() and at the end. Cost: about 1 us per
/// scalar. Errors: Error with the reason when the file cannot be written; unwritten events stay buffered. The
/// destructor flushes too, and ignores such an error.
class TensorBoardWriter {
 public:
  explicit TensorBoardWriter(const std::filesystem::path& folder, std::optional<int64_t> resumed_step = std::nullopt);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// Adds a point. TensorBoard stores scalars as fp32; NaN and infinity are shown as such.
  void scalar(std::string_view tag, double value, int64_t step);
  /// Adds a text (Markdown in TensorBoard), e.g. the configuration or a generated sample.
  void text(std::string_view tag, std::string_view markdown, int64_t step);
  /// Adds every value the step has: loss/train, loss/validation, accuracy/validation, lr, grad_norm, loss_scale,
  /// speed/{tokens_per_s,samples_per_s,mfu,step_ms,host_syncs}, memory/{peak_rss_bytes,device_peak_bytes},
  /// traffic/{comm_bytes,offload_read_bytes,offload_write_bytes}.
  void step(const StepMetrics& metrics);

  void flush();
  /// Drops buffered events: another process writes the run now.
  void discard() { buffer_.clear(); }

  const std::filesystem::path& path() const { return path_; }

 private:
  void add_event(std::string_view fields, int64_t step);
  void append_record(std::string_view data);

  std::filesystem::path path_;
  int fd_ = -1;
  std::string buffer_;
  double last_flush_ = 0;
};

} // namespace trireme::monitor
