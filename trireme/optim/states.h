#pragma once

#include <trireme/optim/options.h>

#include <cstdint>
#include <string>
#include <vector>

/// The states that follow from an optimizer's options; no torch.
namespace trireme::optim {

/// One array of optimizer states.
struct StateInfo {
  /// Name in a checkpoint: "exp_avg".
  std::string name;
  /// False: never negative, so its 8-bit codes have no sign.
  bool is_signed = true;
  double initial = 0;
};

/// Elements per block of 8-bit states, and bytes of its scale.
inline constexpr int64_t kStateBlock = 256;
inline constexpr int64_t kScaleBytes = 4;

/// Number of blocks for this many elements of one parameter.
constexpr int64_t blocks_of(int64_t elements) {
  return (elements + kStateBlock - 1) / kStateBlock;
}

/// The arrays that the optimizer keeps for every parameter, in its order.
std::vector<StateInfo> states_of(const AdamOptions& options);
std::vector<StateInfo> states_of(const SgdOptions& options);
std::vector<StateInfo> states_of(const LambOptions& options);
std::vector<StateInfo> states_of(const LionOptions& options);
std::vector<StateInfo> states_of(const AdagradOptions& options);
std::vector<StateInfo> states_of(const RmspropOptions& options);
std::vector<StateInfo> states_of(const Rule& rule);

/// "adam" (also for its variants with less communication), "sgd", "lamb", "lion", "adagrad" or "rmsprop".
const char* family_of(const Rule& rule);

} // namespace trireme::optim
