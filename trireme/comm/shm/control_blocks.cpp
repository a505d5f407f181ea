#include <trireme/comm/shm/control_blocks.h>

#include <trireme/base/error.h>

namespace trireme::comm::shm {
namespace {

bool all_have_left(const Members& members) {
  for (int member = 0; member < members.size; ++member) {
    if (members.control.left(member).load(std::memory_order_acquire) == 0 &&
        !members.arenas[static_cast<size_t>(member)]->ended()) {
      return false;
    }
  }
  return true;
}

} // namespace

ControlBlocks& ControlBlocks::process() {
  static auto* const blocks = new ControlBlocks(); // groups may end while statics are destroyed
  return *blocks;
}

std::byte* ControlBlocks::make(int size) {
  const std::lock_guard lock(mutex_);
  sweep_locked();
  void* memory = Arena::process().allocate_zeros(Control::bytes(size));
  if (memory == nullptr) {
    throw Error("comm", "shared memory is full.", "Free tensors, or set TRIREME_BACKEND=gloo.");
  }
  return static_cast<std::byte*>(memory);
}

void ControlBlocks::give_up(const Members& members) {
  const std::lock_guard lock(mutex_);
  given_up_.push_back(members);
  sweep_locked();
}

void ControlBlocks::sweep() {
  const std::lock_guard lock(mutex_);
  sweep_locked();
}

void ControlBlocks::sweep_locked() {
  std::erase_if(given_up_, [](const Members& members) {
    const bool over = all_have_left(members);
    if (over) {
      Arena::process().release(members.control.memory());
    }
    return over;
  });
}

} // namespace trireme::comm::shm
