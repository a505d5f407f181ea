#include <trireme/engine/sync_kinds.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <array>
#include <utility>

namespace trireme::engine {
namespace {

using config::EngineConfig;

template <class Rule>
bool steps_by(const EngineConfig& config) {
  return rule_of<Rule>(config) != nullptr;
}

constexpr std::array kKinds = {
    SyncKind{"server", [](const EngineConfig& config) { return config.server.on(); }, true},
    SyncKind{"elastic", [](const EngineConfig& config) { return config.averaging.elastic; }, true},
    SyncKind{"parameter_averaging", [](const EngineConfig& config) { return config.averaging.on(); }},
    SyncKind{"OneBitAdam", steps_by<optim::OneBitAdamOptions>},
    SyncKind{"OneBitLamb", steps_by<optim::OneBitLambOptions>},
    SyncKind{"ZeroOneAdam", steps_by<optim::ZeroOneAdamOptions>},
    SyncKind{"gradient_compression", [](const EngineConfig& config) { return config.compression.on(); }},
};

} // namespace

const SyncKind* kind_of(const EngineConfig& config) {
  const auto* const found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const SyncKind& kind) { return kind.is_on(config); });
  return found == kKinds.end() ? nullptr : found;
}

void refuse_extension(std::string where, std::string what) {
  throw InputError(
      std::move(where), std::move(what),
      "This Trireme was built without extensions. Build it with -DTRIREME_EXTENSIONS=ON, or leave it out.");
}

} // namespace trireme::engine
