#include <trireme/monitor/progress.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>
#include <trireme/base/units.h>
#include <trireme/monitor/resources.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace trireme::monitor {
namespace {

constexpr double kLiveInterval = 0.1;
constexpr double kPlainInterval = 5;
constexpr size_t kWidestBar = 32;
constexpr size_t kNarrowestBar = 8;
constexpr const char* kClearLine = "\r\x1b[2K";

void write_stderr(std::string_view text) {
  // A failed write to stderr cannot be reported.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

/// One field of the line: "loss 1.812". Higher `rank` is dropped first when the window is narrow.
struct Field {
  std::string label;
  std::string value;
  int rank;
};

size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

size_t columns_of(const Field& field) {
  return columns_of(field.label) + columns_of(field.value) + (field.label.empty() || field.value.empty() ? 0 : 1);
}

size_t columns_of(const std::vector<Field>& fields) {
  size_t sum = 0;
  for (const Field& field : fields) {
    sum += columns_of(field) + 2;
  }
  return fields.empty() ? 0 : sum - 2;
}

std::string three_decimals(double value) {
  char text[32];
  std::snprintf(text, sizeof text, std::abs(value) < 1000 ? "%.3f" : "%.3g", value);
  return std::isfinite(value) ? text : std::isnan(value) ? "NaN" : value > 0 ? "inf" : "-inf";
}

std::string whole_seconds(double seconds) {
  return seconds < 59.95 ? concat(static_cast<int>(std::ceil(seconds)), " s") : format_seconds(seconds);
}

std::vector<Field> fields_of(const StepMetrics& metrics, int64_t total_steps, std::optional<double> left,
                             double since_start) {
  std::string step = std::to_string(metrics.step);
  if (total_steps > 0) {
    const std::string total = std::to_string(total_steps);
    step = std::string(total.size() - std::min(total.size(), step.size()), ' ') + step + '/' + total;
  }
  std::vector<Field> fields{{"step", step, 0}};
  if (metrics.loss) {
    fields.push_back({"loss", three_decimals(*metrics.loss), 1});
  }
  if (metrics.val_loss) {
    fields.push_back({"val", three_decimals(*metrics.val_loss), 3});
  }
  if (metrics.val_accuracy) {
    char percent[32];
    std::snprintf(percent, sizeof percent, "%.1f %%", *metrics.val_accuracy * 100);
    fields.push_back({"accuracy", percent, 3});
  }
  if (metrics.tokens_per_s) {
    fields.push_back({"", format_count(*metrics.tokens_per_s) + " tok/s", 4});
  } else if (metrics.samples_per_s) {
    fields.push_back({"", format_count(*metrics.samples_per_s) + " samples/s", 4});
  }
  if (left) {
    fields.push_back({"", whole_seconds(*left) + " left", 2});
  } else {
    fields.push_back({"", whole_seconds(since_start), 5});
  }
  return fields;
}

std::string draw_bar(double done, size_t width, const Terminal& terminal) {
  const auto full = static_cast<size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(width));
  std::string head;
  std::string tail;
  for (size_t i = 0; i < width; ++i) {
    (i < full ? head : tail) += terminal.unicode ? (i < full ? "━" : "─") : (i < full ? "#" : ".");
  }
  return terminal.colour ? concat("\x1b[36m", head, "\x1b[0;2m", tail, "\x1b[0m") : head + tail;
}

std::string join_fields(const std::vector<Field>& fields, bool colour) {
  std::string line;
  for (const Field& field : fields) {
    line += line.empty() ? "" : "  ";
    line += colour && !field.label.empty() ? concat("\x1b[2m", field.label, "\x1b[0m") : field.label;
    line += field.label.empty() || field.value.empty() ? "" : " ";
    line += field.value;
  }
  return line;
}

/// Drops the least important fields until the rest fits; the first always stays, cut if necessary.
void fit(std::vector<Field>& fields, size_t columns) {
  while (fields.size() > 1 && columns_of(fields) > columns) {
    fields.erase(
        std::max_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  }
  Field& last = fields.front();
  if (columns_of(last) > columns) {
    last.label.clear();
    last.value.resize(std::min(last.value.size(), columns));
  }
}

} // namespace

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  if (!options_.write) {
    options_.write = write_stderr;
  }
  if (!options_.clock) {
    options_.clock = monotonic_seconds;
  }
  terminal_ = options_.terminal ? *options_.terminal : stderr_terminal();
  started_ = options_.clock();
  shown_.step = options_.first_step;
  if (terminal_.live) {
    log::set_sink([this](const std::string& line) { say(line); });
  }
}

Progress::~Progress() {
  finish();
}

std::optional<double> Progress::seconds_left(double now) const {
  if (first_update_step_ < 0 || shown_.step <= first_update_step_ || shown_.step >= options_.total_steps) {
    return std::nullopt;
  }
  // The first step is left out: it warms caches and allocates. Evaluations count, because they will recur.
  const double a_step = (now - first_update_) / static_cast<double>(shown_.step - first_update_step_);
  return std::max<double>(0, a_step * static_cast<double>(options_.total_steps - shown_.step));
}

std::string Progress::live_line(double now) const {
  std::vector<Field> fields = fields_of(shown_, options_.total_steps, seconds_left(now), now - started_);
  if (!status_.empty()) {
    fields.push_back({"", status_, 2});
  }
  // The last column stays empty: some terminals wrap when it is written.
  const auto columns = static_cast<size_t>(std::max(1, terminal_.columns() - 1));
  fit(fields, columns);
  std::string text = join_fields(fields, terminal_.colour);
  const size_t used = columns_of(fields);
  if (options_.total_steps <= 0 || used + 2 + kNarrowestBar > columns) {
    return text;
  }
  const double done = static_cast<double>(shown_.step) / static_cast<double>(options_.total_steps);
  return draw_bar(done, std::min(kWidestBar, columns - used - 2), terminal_) + "  " + text;
}

std::string Progress::plain_line(double now) const {
  return join_fields(fields_of(shown_, options_.total_steps, seconds_left(now), now - started_), /*colour=*/false) +
         '\n';
}

void Progress::draw(double now) {
  if (terminal_.live) {
    options_.write(kClearLine + live_line(now));
    line_open_ = true;
  } else {
    options_.write(plain_line(now));
  }
  last_draw_ = now;
  last_drawn_step_ = shown_.step;
}

void Progress::update(const StepMetrics& metrics) {
  const std::lock_guard lock(mutex_);
  if (finished_) {
    return;
  }
  const auto val_loss = metrics.val_loss ? metrics.val_loss : shown_.val_loss;
  const auto val_accuracy = metrics.val_accuracy ? metrics.val_accuracy : shown_.val_accuracy;
  shown_ = metrics;
  shown_.val_loss = val_loss;
  shown_.val_accuracy = val_accuracy;

  const double now = options_.clock();
  const bool first = first_update_step_ < 0;
  if (first) {
    first_update_ = now;
    first_update_step_ = metrics.step;
  }
  const bool last = options_.total_steps > 0 && metrics.step >= options_.total_steps;
  if (first || last || now - last_draw_ >= (terminal_.live ? kLiveInterval : kPlainInterval)) {
    draw(now);
  }
}

void Progress::status(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (finished_ || text == status_) {
    return;
  }
  status_ = text;
  if (terminal_.live) {
    draw(options_.clock());
  }
}

void Progress::say(std::string_view line) {
  const std::lock_guard lock(mutex_);
  std::string text = line_open_ ? kClearLine : "";
  text += line;
  if (line.empty() || line.back() != '\n') {
    text += '\n';
  }
  if (line_open_) {
    text += live_line(options_.clock());
  }
  options_.write(text);
}

void Progress::finish() {
  if (terminal_.live) {
    // Outside the lock: a thread inside the sink holds log's lock and waits for ours.
    const bool mine = [this] {
      const std::lock_guard lock(mutex_);
      return !finished_;
    }();
    if (mine) {
      log::set_sink(nullptr);
    }
  }
  const std::lock_guard lock(mutex_);
  if (finished_) {
    return;
  }
  finished_ = true;
  status_.clear();
  if (first_update_step_ >= 0 && (terminal_.live || last_drawn_step_ != shown_.step)) {
    draw(options_.clock());
  }
  if (line_open_) {
    options_.write("\n");
    line_open_ = false;
  }
}

} // namespace trireme::monitor
