#pragma once

#include <trireme/bucket/state_store.h>
#include <trireme/comm/world.h>
#include <trireme/precision/options.h>

#include <c10/core/Device.h>

#include <memory>
#include <optional>

namespace trireme::zero {

/// While it lives, a module that is Sharded keeps only this rank's part of its parameters as soon as it has been built
/// (and initialised): no rank ever holds the whole model. Afterwards initialize() takes over, at any ZeRO stage.
///
///   zero::Init init(world);
///   Net net(options); // its blocks are Sharded<Block>
///
/// Every rank of the group, the data-parallel ranks, builds the same modules in the same order. One at a time.
/// What is built outside of Sharded modules stays whole.
class Init {
 public:
  /// All ranks of the world are data-parallel.
  /// `type`: what the parameters are converted to as well, as the configuration will ask for ("bf16": {"enabled":
  /// true}). `device`: where the engine will train; each module is moved there as it is built. Default: as
  /// InitializeOptions::device, which is device::choose("auto"). Errors: Error when another one lives; those of
  /// device::choose().
  explicit Init(const comm::World& world, precision::Type type = precision::Type::fp32,
                std::optional<c10::Device> device = std::nullopt);
  /// Among some of the ranks, whose device only the caller knows. The parts are in `store`, which lives until the
  /// engine has them; null: in memory.
  Init(comm::Group group, precision::Type type, c10::Device device,
       std::shared_ptr<bucket::StateStore> store = nullptr);
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
  const std::shared_ptr<bucket::StateStore>& store() const {
    return store_;
  }

 private:
  comm::Group group_;
  precision::Type type_;
  c10::Device device_;
  std::shared_ptr<bucket::StateStore> store_;
};

} // namespace trireme::zero
