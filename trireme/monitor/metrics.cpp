#include <trireme/monitor/metrics.h>

#include <trireme/base/file.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::monitor {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

struct RealKey {
  const char* key;
  std::optional<double> StepMetrics::* member;
};
struct WholeKey {
  const char* key;
  std::optional<int64_t> StepMetrics::* member;
};

constexpr RealKey kRealKeys[] = {
    {"loss", &StepMetrics::loss},
    {"val_loss", &StepMetrics::val_loss},
    {"val_accuracy", &StepMetrics::val_accuracy},
    {"lr", &StepMetrics::lr},
    {"grad_norm", &StepMetrics::grad_norm},
    {"loss_scale", &StepMetrics::loss_scale},
    {"tokens_per_s", &StepMetrics::tokens_per_s},
    {"samples_per_s", &StepMetrics::samples_per_s},
    {"mfu", &StepMetrics::mfu},
    {"step_ms", &StepMetrics::step_ms},
    {"comm_wait_ms", &StepMetrics::comm_wait_ms},
    {"wall_time", &StepMetrics::wall_time},
};
constexpr WholeKey kWholeKeys[] = {
    {"peak_rss_bytes", &StepMetrics::peak_rss_bytes},
    {"device_peak_bytes", &StepMetrics::device_peak_bytes},
    {"activation_bytes", &StepMetrics::activation_bytes},
    {"comm_bytes", &StepMetrics::comm_bytes},
    {"offload_read_bytes", &StepMetrics::offload_read_bytes},
    {"offload_write_bytes", &StepMetrics::offload_write_bytes},
    {"host_syncs", &StepMetrics::host_syncs},
};

const char* not_finite_text(double value) {
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

std::optional<double> not_finite_value(const json& text) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (text == "NaN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (text == "Infinity") {
    return infinity;
  }
  return text == "-Infinity" ? std::optional<double>(-infinity) : std::nullopt;
}

bool is_int64(const json& value) {
  return value.is_number_unsigned()
             ? value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
             : value.is_number_integer();
}

bool read_real(const json& object, const char* key, std::optional<double>& into) {
  const auto found = object.find(key);
  if (found == object.end()) {
    return true;
  }
  if (found->is_null()) {
    const auto text = object.find(std::string(key) + "_text");
    into = text == object.end() ? std::nullopt : not_finite_value(*text);
    return true;
  }
  if (!found->is_number()) {
    return false;
  }
  into = found->get<double>();
  return true;
}

bool read_whole(const json& object, const char* key, std::optional<int64_t>& into) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return true;
  }
  if (!is_int64(*found)) {
    return false;
  }
  into = found->get<int64_t>();
  return true;
}

bool read_wholes(const json& object, const char* key, std::map<std::string, int64_t>& into) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return true;
  }
  if (!found->is_object() || !std::all_of(found->begin(), found->end(), is_int64)) {
    return false;
  }
  into = found->get<std::map<std::string, int64_t>>();
  return true;
}

} // namespace

std::string metrics_line(const StepMetrics& metrics) {
  ordered_json object;
  object["step"] = metrics.step;
  for (const auto& [key, member] : kRealKeys) {
    const auto& value = metrics.*member;
    if (!value) {
      continue;
    }
    if (std::isfinite(*value)) {
      object[key] = *value;
    } else {
      object[key] = nullptr;
      object[std::string(key) + "_text"] = not_finite_text(*value);
    }
  }
  for (const auto& [key, member] : kWholeKeys) {
    if (metrics.*member) {
      object[key] = *(metrics.*member);
    }
  }
  if (!metrics.comm_bytes_by.empty()) {
    object["comm_bytes_by"] = metrics.comm_bytes_by;
  }
  return object.dump();
}

std::optional<StepMetrics> parse_metrics_line(std::string_view line) {
  const json object = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return std::nullopt;
  }
  const auto step = object.find("step");
  if (step == object.end() || !is_int64(*step) || step->get<int64_t>() < 0) {
    return std::nullopt;
  }
  StepMetrics metrics;
  metrics.step = step->get<int64_t>();
  for (const auto& [key, member] : kRealKeys) {
    if (!read_real(object, key, metrics.*member)) {
      return std::nullopt;
    }
  }
  for (const auto& [key, member] : kWholeKeys) {
    if (!read_whole(object, key, metrics.*member)) {
      return std::nullopt;
    }
  }
  if (!read_wholes(object, "comm_bytes_by", metrics.comm_bytes_by)) {
    return std::nullopt;
  }
  return metrics;
}

std::vector<StepMetrics> read_metrics(const std::filesystem::path& path) {
  const std::string content = read_file(path);
  std::vector<StepMetrics> steps;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const auto metrics = parse_metrics_line(std::string_view(content).substr(begin, end - begin));
    begin = end + 1;
    if (!metrics) {
      continue;
    }
    while (!steps.empty() && steps.back().step >= metrics->step) {
      steps.pop_back();
    }
    steps.push_back(*metrics);
  }
  return steps;
}

} // namespace trireme::monitor
