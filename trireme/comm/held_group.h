#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <utility>

namespace trireme::comm {

/// A group as a value that autograd functions store between forward and backward (AutogradContext::saved_data).
class HeldGroup : public torch::CustomClassHolder {
 public:
  static c10::IValue hold(const Group& group) {
    return c10::IValue::make_capsule(c10::make_intrusive<HeldGroup>(group));
  }
  static Group of(const c10::IValue& held) {
    return c10::static_intrusive_pointer_cast<HeldGroup>(held.toCapsule())->group_;
  }
  explicit HeldGroup(Group group) : group_(std::move(group)) {}

 private:
  Group group_;
};

} // namespace trireme::comm
