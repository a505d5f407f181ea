#include <trireme/offload/conflict.h>

#include <trireme/base/error.h>
#include <trireme/base/units.h>

namespace trireme::offload {
namespace {

constexpr const char* kLeaveOut = "Leave one of them out.";

// Of states or parameters that leave a device for its host.
Conflict on_device(const Options& options, const Setting& setting) {
  const OptimizerOptions& states = options.optimizer;
  const ParameterOptions& parameters = options.parameters;
  if (states.place != Place::device && !setting.exchanges_values.empty()) {
    return {concat("offload_optimizer on ", setting.device, " with ", setting.exchanges_values,
                   ", which works on masters and states where the gradients are"),
            kLeaveOut};
  }
  if (states.delayed_update) {
    const char* const refused =
        states.place == Place::device       ? "optimizer states on the device, which steps them in no time of the host"
        : states.ratio < 1                  ? "a ratio below 1: one part would be a step ahead of the other"
        : setting.steps_in_backward         ? "step_in_backward, which steps at once"
        : parameters.place != Place::device ? "offload_param: shards would change while they are gathered"
                                            : nullptr;
    if (refused != nullptr) {
      return {concat("delayed_update with ", refused), kLeaveOut};
    }
    if (!setting.needs_norms.empty()) {
      return {concat(setting.needs_norms,
                     " with a delayed update: its first phase needs all gradients and would hold the device up"),
              "Use AdamW, or no delayed_update."};
    }
  }
  if (states.place != Place::device && states.ratio < 1 && !setting.needs_norms.empty()) {
    return {
        concat(setting.needs_norms,
               ", which needs the norms of whole parameters in one place, with a part of the parameters on the device"),
        "Let all of them be stepped on the host (\"ratio\": 1)."};
  }
  return {};
}

} // namespace

std::string what_is_not_moved(int64_t all, int64_t kept, int64_t element_bytes, const ParameterOptions& options,
                              int64_t persistence_threshold) {
  const std::string key = concat("offload_param to \"", word(options.place), '"');
  if (all == 0) {
    return concat(key, " moves nothing: each parameter has fewer than ", persistence_threshold,
                  " elements (stage3_param_persistence_threshold), so every rank keeps it whole. To move them: a "
                  "smaller threshold");
  }
  if (kept == 0) {
    return "";
  }
  return concat(key, ": ", kept == all ? "all" : concat(kept, " of the"), ' ', all,
                " elements that a rank has of sharded parameters, ",
                format_bytes(static_cast<double>(kept * element_bytes)), ", stay in memory, because max_in_cpu is ",
                options.max_in_cpu, ". To have them in files: \"max_in_cpu\": 0");
}

Conflict conflict(const Options& options, const Setting& setting) {
  const bool moves = options.optimizer.place != Place::device || options.parameters.place != Place::device;
  if (!moves && !options.optimizer.delayed_update) {
    return {};
  }
  if (options.parameters.place != Place::device && setting.zero_stage < 3) {
    return {concat("offload_param with ZeRO stage ", setting.zero_stage,
                   ", at which every rank uses whole parameters all the time"),
            "Use \"stage\": 3, or leave offload_param out."};
  }
  if (setting.has_servers) {
    return {"offload with parameter servers: masters and states are on the servers", kLeaveOut};
  }
  return setting.device.empty() ? Conflict() : on_device(options, setting);
}

} // namespace trireme::offload
