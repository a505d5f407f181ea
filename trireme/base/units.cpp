#include <trireme/base/units.h>

#include <cmath>
#include <cstdio>

namespace trireme {
namespace {

std::string three_digits(double value) {
  char text[32];
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string scaled(double value, const char* const* units, int count, const char* space) {
  int i = 0;
  while (i + 1 < count && std::abs(value) >= 999.5) {
    value /= 1000;
    ++i;
  }
  if (i == 0) {
    char text[32];
    std::snprintf(text, sizeof text, "%.0f", value);
    return std::string(text) + (*units[0] ? space : "") + units[0];
  }
  return three_digits(value) + space + units[i];
}

} // namespace

std::string format_bytes(double bytes) {
  static const char* const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  return scaled(bytes, units, 6, " ");
}

std::string format_count(double count) {
  static const char* const units[] = {"", "k", "M", "B", "T"};
  return scaled(count, units, 5, "");
}

std::string format_seconds(double seconds) {
  char text[48];
  if (seconds < 0.9995e-3) {
    return three_digits(seconds * 1e6) + " us";
  }
  if (seconds < 0.9995) {
    return three_digits(seconds * 1e3) + " ms";
  }
  if (seconds < 59.95) {
    return three_digits(seconds) + " s";
  }
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) {
    std::snprintf(text, sizeof text, "%d min %02d s", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  } else {
    std::snprintf(text, sizeof text, "%d h %02d min", static_cast<int>(whole / 3600),
                  static_cast<int>(whole % 3600 / 60));
  }
  return text;
}

} // namespace trireme
