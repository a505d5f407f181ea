#include <trireme/shards/zero/init.h>

#include <trireme/base/error.h>

#include <utility>

namespace trireme::zero {
namespace {

thread_local const Init* the_active = nullptr;

} // namespace

Init::Init(const comm::World& world, precision::Type type, std::optional<c10::Device> device)
    : Init(world.group(), type, device ? *device : world.device()) {}

Init::Init(comm::Group group, precision::Type type, c10::Device device, std::shared_ptr<bucket::StateStore> store)
    : group_(std::move(group)), type_(type), device_(device), store_(std::move(store)) {
  if (the_active != nullptr) {
    throw Error("zero", "a zero::Init exists already", "Make one around the construction of the entire model.");
  }
  the_active = this;
}

Init::~Init() {
  the_active = nullptr;
}

const Init* Init::active() {
  return the_active;
}

} // namespace trireme::zero
