#pragma once

#include <trireme/base/json.h>
#include <trireme/optim/options.h>

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

namespace trireme::config {

/// Reads DeepSpeed's "optimizer" section after check_keys(); nullopt when there is none.
/// Errors: InputError for settings that contradict each other.
std::optional<optim::OptimizerOptions> read_optimizer(const JsonNode* section);

/// Reads DeepSpeed's "scheduler" section after check_keys(); kind `constant` when there is none.
/// Errors: InputError for settings that contradict each other or are missing.
optim::ScheduleOptions read_schedule(const JsonNode* section, const std::optional<optim::OptimizerOptions>& optimizer,
                                     std::vector<std::string>& notes);

/// Write the sections back, defaults included; null when there is none.
nlohmann::ordered_json to_json(const std::optional<optim::OptimizerOptions>& optimizer);
nlohmann::ordered_json to_json(const optim::ScheduleOptions& schedule);

} // namespace trireme::config
