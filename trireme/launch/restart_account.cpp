#include <trireme/launch/restart_account.h>

#include <trireme/base/clock.h>
#include <trireme/base/error.h>
#include <trireme/base/units.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <utility>

namespace trireme::launch {
namespace {

template <typename Clock>
double seconds_of() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

std::string clock_text(double when) {
  const auto seconds = static_cast<std::time_t>(when);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[32];
  const size_t size = std::strftime(text, sizeof(text), "%H:%M:%S", &parts);
  std::snprintf(text + size, sizeof(text) - size, ".%03d",
                static_cast<int>((when - static_cast<double>(seconds)) * 1000));
  return text;
}

std::string count_steps(int64_t steps) {
  return concat(steps, steps == 1 ? " step" : " steps");
}

} // namespace

RestartAccount::Clocks RestartAccount::Clocks::of_this_machine() {
  return {seconds_of<std::chrono::system_clock>, seconds_of<trireme::Clock>};
}

RestartAccount::RestartAccount(std::function<std::optional<Progress>()> progress, Clocks clocks)
    : progress_(std::move(progress)),
      clocks_(std::move(clocks)),
      begun_(clocks_.steady_seconds()),
      started_steady_(begun_),
      started_at_(clocks_.unix_seconds()) {}

void RestartAccount::started() {
  started_at_ = clocks_.unix_seconds();
  started_steady_ = clocks_.steady_seconds();
  if (open_ && !progress_) {
    close(started_at_ - open_->noticed_at);
  }
  waiting_ = open_.has_value();
}

void RestartAccount::failed(const std::string& cause, double seconds_ago) {
  Restart restart;
  restart.cause = cause;
  restart.noticed_at = clocks_.unix_seconds() - seconds_ago;
  const auto at = progress_ ? progress_() : std::nullopt;
  const bool stepped = at && at->stepped_at > started_at_;
  if (open_ && stepped) {
    close(at->stepped_at - open_->noticed_at);
  }
  if (stepped) {
    restart.steps_lost = at->unsaved_steps;
    restart.redone_seconds = at->unsaved_seconds + std::max(0.0, restart.noticed_at - at->stepped_at);
  } else if (open_) { // failed before the first step: all of that was down time
    close(restart.noticed_at - open_->noticed_at);
  } else if (progress_) { // the first start saved nothing
    restart.redone_seconds = std::max(0.0, clocks_.steady_seconds() - started_steady_ - seconds_ago);
  }
  waiting_ = false;
  open_ = restart;
}

void RestartAccount::close(double down_seconds) {
  open_->down_seconds = std::max(0.0, down_seconds);
  restarts_.push_back(*std::exchange(open_, std::nullopt));
  waiting_ = false;
}

std::string RestartAccount::look() {
  const auto at = waiting_ ? progress_() : std::nullopt;
  if (!at || at->stepped_at <= started_at_) {
    return "";
  }
  close(at->stepped_at - open_->noticed_at);
  const Restart& last = restarts_.back();
  return concat("running again: failure noticed at ", clock_text(last.noticed_at), ", step ", at->step, " done ",
                format_seconds(last.down_seconds), " later, ", count_steps(last.steps_lost), " lost (",
                format_seconds(last.redone_seconds), " of work)");
}

std::string RestartAccount::finish() {
  if (const std::string words = look(); open_ && words.empty()) {
    close(clocks_.unix_seconds() - open_->noticed_at);
  }
  total_ = clocks_.steady_seconds() - begun_;
  if (restarts_.empty()) {
    return "";
  }
  double down = 0;
  double redone = 0;
  int64_t steps = 0;
  for (const Restart& restart : restarts_) {
    down += restart.down_seconds;
    redone += restart.redone_seconds;
    steps += restart.steps_lost;
  }
  char percent[32];
  std::snprintf(percent, sizeof(percent), "%.1f %%", ettr() * 100);
  return concat(restarts_.size(), restarts_.size() == 1 ? " restart" : " restarts", ": ", percent, " of ",
                format_seconds(total_), " was useful (ETTR); down ", format_seconds(down), ", ", count_steps(steps),
                " redone (", format_seconds(redone), ")");
}

double RestartAccount::ettr() const {
  double lost = 0;
  for (const Restart& restart : restarts_) {
    lost += restart.down_seconds + restart.redone_seconds;
  }
  return total_ > 0 ? std::clamp(1 - lost / total_, 0.0, 1.0) : 1;
}

} // namespace trireme::launch
