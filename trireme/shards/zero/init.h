#pragma once

#include <trireme/comm/world.h>
#include <trireme/precision/options.h>
#include <trireme/shards/bucket/state_store.h>

#include <c10/core/Device.h>

#include <memory>
#include <optional>

namespace trireme::zero {

/// Shards each Sharded module as soon as it is built and initialised, during its lifetime: no rank ever holds the full
/// model. Afterwards initialize() takes over, at any ZeRO stage.
///
///   zero::Init init(world);
///   Net net(options); // its blocks are Sharded<Block>
///
/// Every data-parallel rank builds the same modules in the same order. Only one Init may exist at a time. Parameters
/// outside of Sharded modules are not sharded.
class Init {
 public:
  /// All ranks of the world are data-parallel. `type`: converts the parameters too, as the
  /// configuration will ask for ("bf16": {"enabled": true}). `device`: where the engine will
  /// train; each module is moved there as it is built. Default: as InitializeOptions::device,
  /// which is World::device(). Errors: Error if an Init exists already; those of
  /// device::choose().
  explicit Init(const comm::World& world, precision::Type type = precision::Type::fp32,
                std::optional<c10::Device> device = std::nullopt);
  /// For a group of ranks; the caller chooses the device. The shards are in `store`, which must live until the engine
  /// has them; null: in memory.
  Init(comm::Group group, precision::Type type, c10::Device device,
       std::shared_ptr<bucket::StateStore> store = nullptr);
  ~Init();
  Init(const Init&) = delete;
  Init& operator=(const Init&) = delete;

  /// The current Init, or nullptr.
  static const Init* active();
  const comm::Group& group() const { return group_; }
  precision::Type type() const { return type_; }
  c10::Device device() const { return device_; }
  const std::shared_ptr<bucket::StateStore>& store() const { return store_; }

 private:
  comm::Group group_;
  precision::Type type_;
  c10::Device device_;
  std::shared_ptr<bucket::StateStore> store_;
};

} // namespace trireme::zero
