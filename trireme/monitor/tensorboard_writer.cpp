#include <trireme/monitor/tensorboard_writer.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/monitor/crc32c.h>
#include <trireme/monitor/html.h>
#include <trireme/monitor/resources.h>

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>

namespace trireme::monitor {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFlushBytes = 64 << 10;
constexpr double kFlushSeconds = 2;

// Field numbers of event.proto, summary.proto, tensor.proto and tensor_shape.proto.
constexpr int kEventWallTime = 1;
constexpr int kEventStep = 2;
constexpr int kEventFileVersion = 3;
constexpr int kEventSummary = 5;
constexpr int kEventSessionLog = 7;
constexpr int kSessionLogStatus = 1;
constexpr uint64_t kSessionLogStart = 1;
constexpr int kSummaryValue = 1;
constexpr int kValueTag = 1;
constexpr int kValueSimple = 2;
constexpr int kValueTensor = 8;
constexpr int kValueMetadata = 9;
constexpr int kMetadataPlugin = 1;
constexpr int kPluginName = 1;
constexpr int kTensorType = 1;
constexpr int kTensorShape = 2;
constexpr int kTensorString = 8;
constexpr int kShapeDim = 2;
constexpr int kDimSize = 1;
constexpr uint64_t kTypeString = 7;

void little_endian(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    out.push_back(static_cast<char>(value >> (8 * i)));
  }
}

/// Builds one protobuf message field by field.
class Message {
 public:
  Message& varint(int field, uint64_t value) {
    raw_varint(static_cast<uint64_t>(field) << 3);
    raw_varint(value);
    return *this;
  }
  Message& fixed64(int field, double value) {
    raw_varint(static_cast<uint64_t>(field) << 3 | 1);
    little_endian(bytes_, std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    raw_varint(static_cast<uint64_t>(field) << 3 | 2);
    raw_varint(value.size());
    bytes_.append(value);
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }
  Message& fixed32(int field, float value) {
    raw_varint(static_cast<uint64_t>(field) << 3 | 5);
    little_endian(bytes_, std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  const std::string& encoded() const { return bytes_; }

 private:
  void raw_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      bytes_.push_back(static_cast<char>(value | 0x80));
    }
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

std::string event_file_name() {
  static std::atomic<int> number{0};
  // Padded seconds, so that the names in a folder sort by age.
  std::string seconds = std::to_string(static_cast<int64_t>(unix_seconds()));
  seconds.insert(0, 10 - std::min<size_t>(10, seconds.size()), '0');
  return concat("events.out.tfevents.", seconds, '.', host_name(), '.', ::getpid(), '.', number++);
}

} // namespace

TensorBoardWriter::TensorBoardWriter(const fs::path& folder, std::optional<int64_t> resumed_step)
    : path_(folder / event_file_name()), last_flush_(monotonic_seconds()) {
  std::error_code error;
  make_private_folders(folder, error);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd_ < 0) {
    throw Error(
        "tensorboard",
        concat("cannot create ", path_.string(), ": ", describe_write_failure(error ? error.value() : errno, path_, 0)),
        "Check the output folder and its permissions.");
  }
  append_record(Message().fixed64(kEventWallTime, unix_seconds()).bytes(kEventFileVersion, "brain.Event:2").encoded());
  if (resumed_step) {
    add_event(Message().message(kEventSessionLog, Message().varint(kSessionLogStatus, kSessionLogStart)).encoded(),
              *resumed_step + 1);
  }
}

TensorBoardWriter::~TensorBoardWriter() {
  try {
    flush();
  } catch (const Error&) {
    // Documented: a destructor cannot report it.
  }
  ::close(fd_);
}

void TensorBoardWriter::append_record(std::string_view data) {
  std::string length;
  little_endian(length, data.size(), 8);
  buffer_ += length;
  little_endian(buffer_, masked_crc32c(length), 4);
  buffer_ += data;
  little_endian(buffer_, masked_crc32c(data), 4);
}

void TensorBoardWriter::add_event(std::string_view fields, int64_t step) {
  const Message head =
      Message().fixed64(kEventWallTime, unix_seconds()).varint(kEventStep, static_cast<uint64_t>(step));
  append_record(head.encoded() + std::string(fields));
  if (buffer_.size() >= kFlushBytes || monotonic_seconds() - last_flush_ >= kFlushSeconds) {
    flush();
  }
}

void TensorBoardWriter::scalar(std::string_view tag, double value, int64_t step) {
  const Message point = Message().bytes(kValueTag, clean_utf8(tag)).fixed32(kValueSimple, static_cast<float>(value));
  add_event(Message().message(kEventSummary, Message().message(kSummaryValue, point)).encoded(), step);
}

void TensorBoardWriter::text(std::string_view tag, std::string_view markdown, int64_t step) {
  const Message tensor = Message()
                             .varint(kTensorType, kTypeString)
                             .message(kTensorShape, Message().message(kShapeDim, Message().varint(kDimSize, 1)))
                             .bytes(kTensorString, clean_utf8(markdown));
  const Message metadata = Message().message(kMetadataPlugin, Message().bytes(kPluginName, "text"));
  const Message value =
      Message().bytes(kValueTag, clean_utf8(tag)).message(kValueTensor, tensor).message(kValueMetadata, metadata);
  add_event(Message().message(kEventSummary, Message().message(kSummaryValue, value)).encoded(), step);
}

void TensorBoardWriter::step(const StepMetrics& metrics) {
  const auto add = [&](const char* tag, const auto& value) {
    if (value) {
      scalar(tag, static_cast<double>(*value), metrics.step);
    }
  };
  add("loss/train", metrics.loss);
  add("loss/validation", metrics.val_loss);
  add("accuracy/validation", metrics.val_accuracy);
  add("lr", metrics.lr);
  add("grad_norm", metrics.grad_norm);
  add("loss_scale", metrics.loss_scale);
  add("speed/tokens_per_s", metrics.tokens_per_s);
  add("speed/samples_per_s", metrics.samples_per_s);
  add("speed/mfu", metrics.mfu);
  add("speed/step_ms", metrics.step_ms);
  add("memory/peak_rss_bytes", metrics.peak_rss_bytes);
  add("memory/device_peak_bytes", metrics.device_peak_bytes);
  add("traffic/comm_bytes", metrics.comm_bytes);
  add("traffic/offload_read_bytes", metrics.offload_read_bytes);
  add("traffic/offload_write_bytes", metrics.offload_write_bytes);
  add("speed/host_syncs", metrics.host_syncs);
}

void TensorBoardWriter::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      const int code = errno;
      buffer_.erase(0, done);
      throw Error("tensorboard",
                  concat("cannot write ", path_.string(), ": ", describe_write_failure(code, path_, buffer_.size())),
                  "Free space, or switch TensorBoard output off.");
    }
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
  last_flush_ = monotonic_seconds();
}

} // namespace trireme::monitor
