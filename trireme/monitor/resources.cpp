#include <trireme/monitor/resources.h>

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string_view>

namespace trireme::monitor {
namespace {

int64_t status_bytes(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, key.size(), key) == 0) {
      return std::strtoll(line.c_str() + key.size(), nullptr, 10) * 1024;
    }
  }
  return 0;
}

template <typename Clock>
double seconds_of() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

} // namespace

int64_t peak_rss_bytes() {
  return status_bytes("VmHWM:");
}

int64_t current_rss_bytes() {
  return status_bytes("VmRSS:");
}

int64_t current_private_bytes() {
  return status_bytes("RssAnon:") + status_bytes("RssFile:");
}

double unix_seconds() {
  return seconds_of<std::chrono::system_clock>();
}

double monotonic_seconds() {
  return seconds_of<std::chrono::steady_clock>();
}

std::string format_utc(double unix_seconds) {
  const auto seconds = static_cast<time_t>(unix_seconds);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

std::string host_name() {
  char name[256] = {};
  const bool known = ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0';
  return known ? name : "localhost";
}

} // namespace trireme::monitor
