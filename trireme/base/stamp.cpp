#include <trireme/base/stamp.h>

#include <cstdio>
#include <ctime>
#include <random>

namespace trireme {

std::string random_id() {
  std::random_device source;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", source());
    id += digits;
  }
  return id;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

} // namespace trireme
