#pragma once

#include <trireme/comm/group.h>
#include <trireme/precision/options.h>

#include <c10/core/Device.h>

namespace trireme::zero {

/// While it lives, a module that is Sharded keeps only this rank's part of its parameters as soon as it has been built (and
/// initialised): no rank ever holds the whole model. Afterwards initialize() takes over, at any ZeRO stage.
///
///   zero::Init init(world.group());
///   Net net(options); // its blocks are Sharded<Block>
///
/// Every rank of `group`, the data-parallel ranks, builds the same modules in the same order. One at a time.
/// What is built outside of Sharded modules stays whole.
class Init {
 public:
  /// `type`: what the parameters are converted to as well, as the configuration will ask for ("bf16": {"enabled": true}).
  /// `device`: where the engine will train (InitializeOptions::device); each module is moved there as it is built.
  /// Errors: Error when another one lives.
  explicit Init(comm::Group group, precision::Type type = precision::Type::fp32, c10::Device device = c10::kCPU);
  ~Init();
  Init(const Init&) = delete;
  Init& operator=(const Init&) = delete;

  /// The one that lives, or nullptr.
  static const Init* active();
  const comm::Group& group() const {
    return group_;
  }
  precision::Type type() const {
    return type_;
  }
  c10::Device device() const {
    return device_;
  }

 private:
  comm::Group group_;
  precision::Type type_;
  c10::Device device_;
};

} // namespace trireme::zero
