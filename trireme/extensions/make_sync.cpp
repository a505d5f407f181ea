// What engine/ asks of extensions.
#include <trireme/base/error.h>
#include <trireme/engine/sync_kinds.h>
#include <trireme/extensions/averaging/averaging_sync.h>
#include <trireme/extensions/compress/gradient_compression_sync.h>
#include <trireme/extensions/compress/one_bit_adam_sync.h>
#include <trireme/extensions/compress/one_bit_lamb_sync.h>
#include <trireme/extensions/compress/zero_one_adam_sync.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace trireme::engine {
namespace {

using Made = std::unique_ptr<parallel::GradientSync>;

// The keys of a file are checked when it is read; options can be made in C++.
void at_least_one(const char* optimizer, const char* key, std::optional<int64_t> steps) {
  if (steps && *steps < 1) {
    throw InputError("engine", concat(optimizer, "'s ", key, " is ", *steps), "Give a number >= 1.");
  }
}

Made one_bit_adam(SyncInputs in) {
  const auto& adam = *rule_of<optim::OneBitAdamOptions>(in.config);
  at_least_one("OneBitAdam", "freeze_step", adam.freeze_step);
  return std::make_unique<compress::OneBitAdamSync>(std::move(in.plain), adam, in.everyone);
}

Made one_bit_lamb(SyncInputs in) {
  const auto& lamb = *rule_of<optim::OneBitLambOptions>(in.config);
  at_least_one("OneBitLamb", "freeze_step", lamb.freeze_step);
  if (!(lamb.coeff_beta >= 0 && lamb.coeff_beta < 1) ||
      !(lamb.factor_min > 0 && lamb.factor_min <= 1 && lamb.factor_max >= 1) ||
      !(lamb.factor_threshold >= 0 && lamb.factor_threshold < 1)) {
    throw InputError("engine",
                     concat("OneBitLamb with coeff_beta ", lamb.coeff_beta, ", factor_min ", lamb.factor_min,
                            ", factor_max ", lamb.factor_max, ", factor_threshold ", lamb.factor_threshold),
                     "coeff_beta and factor_threshold are from 0 up to 1, factor_min above 0 and at most 1, "
                     "factor_max at least 1.");
  }
  return std::make_unique<compress::OneBitLambSync>(std::move(in.plain), lamb, in.everyone);
}

Made zero_one_adam(SyncInputs in) {
  const auto& adam = *rule_of<optim::ZeroOneAdamOptions>(in.config);
  at_least_one("ZeroOneAdam", "var_freeze_step", adam.var_freeze_step);
  at_least_one("ZeroOneAdam", "var_update_scaler", adam.var_update_scaler);
  at_least_one("ZeroOneAdam", "local_step_scaler", adam.local_step_scaler);
  at_least_one("ZeroOneAdam", "local_step_clipper", adam.local_step_clipper);
  return std::make_unique<compress::ZeroOneAdamSync>(std::move(in.plain), adam, in.everyone,
                                                     adam.local_step_clipper > 1);
}

Made compressed(SyncInputs in) {
  return std::make_unique<compress::GradientCompressionSync>(std::move(in.plain), in.config.compression, in.everyone);
}

Made averaging(SyncInputs in) {
  return std::make_unique<parallel::AveragingSync>(in.groups, in.config.averaging, in.type);
}

constexpr std::array<std::pair<std::string_view, Made (*)(SyncInputs)>, 5> kMakers = {{
    {"parameter_averaging", averaging},
    {"OneBitAdam", one_bit_adam},
    {"OneBitLamb", one_bit_lamb},
    {"ZeroOneAdam", zero_one_adam},
    {"gradient_compression", compressed},
}};

} // namespace

Made make_sync(const SyncKind& kind, SyncInputs inputs) {
  const auto* const found =
      std::find_if(kMakers.begin(), kMakers.end(), [&](const auto& maker) { return maker.first == kind.name; });
  if (found == kMakers.end()) {
    throw Error("engine", concat("no extension makes ", kind.name), "Add a row to extensions/make_sync.cpp.");
  }
  return found->second(std::move(inputs));
}

bool has_extensions() {
  return true;
}

} // namespace trireme::engine
