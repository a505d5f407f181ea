#include <trireme/engine/skipped_steps.h>

#include <trireme/base/error.h>
#include <trireme/base/log.h>

namespace trireme::engine {
namespace {

// Ends a run whose loss stays NaN. Steps that still lower the loss scale do not count.
constexpr int64_t kMaxInARow = 20;
// After this many skipped steps in a row, searches for the source of NaN and Inf.
constexpr int64_t kExplainAfter = 3;

} // namespace

void SkippedSteps::skip(const Parts& parts, const StepState& state, int64_t number, const std::string& why,
                        const precision::LossScaler::Update& scaling) {
  ++in_a_row_;
  const comm::Group& ranks = parts.step_ranks();
  const bool tells = ranks.rank() == 0;
  if (tells) {
    log::warning(
        "step ", number, " skipped", ranks.size() == parts.ranks.everyone.size() ? " on all ranks" : "", ": ", why,
        scaling.scale < scaling.used ? concat("; the loss scale falls from ", scaling.used, " to ", scaling.scale) : "",
        " (", state.skipped_steps, " skipped so far)");
  }
  if (watch_) {
    source_ = watch_->report(ranks);
    watch_.reset();
    if (tells) {
      log::warning(source_);
    }
  }
  if (scaling.at_minimum || (in_a_row_ >= kMaxInARow && !state.scale.scaler().dynamic())) {
    throw Error("engine",
                concat(in_a_row_, " steps in a row had no finite loss or gradient; the last was step ", number,
                       scaling.at_minimum ? concat(", at the smallest loss scale (", scaling.used, ")") : "",
                       source_.empty() ? "" : ". ", source_),
                "Lower the learning rate or check the data, and continue from the last checkpoint.");
  }
  if (in_a_row_ == kExplainAfter) {
    precision::NamedTensors parameters;
    for (const auto& buffer : parts.buffers.trained) {
      for (int64_t i = 0; i < buffer->count(); ++i) {
        parameters.emplace_back(buffer->name(i), buffer->parameter(i));
      }
    }
    watch_ = std::make_unique<precision::OverflowWatch>(parameters);
  }
}

} // namespace trireme::engine
