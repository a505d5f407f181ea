#include <trireme/comm/lone_group.h>

#include <trireme/comm/backends.h>
#include <trireme/comm/group_state.h>
#include <trireme/comm/store_handle.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace trireme::comm {
namespace {

std::shared_ptr<Group::State> open_alone(const std::string& backend, at::Device device) {
  const GroupSetup setup{.name = "alone",
                         .store = Store(handle_of(c10::make_intrusive<c10d::HashStore>()), "alone/"),
                         .rank = 0,
                         .size = 1,
                         .members = {0},
                         .hosts = {0},
                         .device = device};
  return std::make_shared<Group::State>(setup.name, setup.name, setup.members,
                                        std::make_unique<Routes>(find_backend(backend).connect(setup)), setup.timeout,
                                        nullptr, 1);
}

} // namespace

LoneGroup::LoneGroup(const std::string& backend, at::Device device)
    : state_(open_alone(backend, device)), group_(state_) {}

LoneGroup::~LoneGroup() {
  state_->close();
}

} // namespace trireme::comm
