#include <trireme/device/cards.h>

namespace trireme::device {

Cards cuda_cards() noexcept {
  return {};
}

bool knows_cuda() noexcept {
  return false;
}

} // namespace trireme::device
