#pragma once

#include <trireme/memory/activations/activations.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::zero {

class EarlyShards;
class ParameterCoordinator;

/// The sharding of a module: the coordinator that gathers its parameters, and what zero::Init left of them.
class Unit {
 public:
  Unit();
  virtual ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  virtual torch::nn::Module& module() = 0;
  /// True if it is always a unit of its own. Inside another unit, the rest of that unit then stays gathered during its
  /// use. Otherwise it belongs to the outer unit.
  virtual bool is_tile() const { return false; }

  /// `coordinator` gathers the parameters from now on; drops what Init left.
  void join(const std::shared_ptr<ParameterCoordinator>& coordinator);
  /// Gathers parameters that Init has sharded; they stay gathered until join(). Collective if so. Returns whether it
  /// was so.
  bool make_whole();

 protected:
  void built(torch::nn::Module& module);
  /// The module as a part of the model, of class `type`.
  activations::ModelPart part(torch::nn::Module& module, const std::type_info& type);
  void enter(torch::nn::Module& module);
  void leave(torch::nn::Module& module, const at::Tensor& output);
  void leave(torch::nn::Module& module, const std::vector<at::Tensor>& outputs);
  template <typename... T>
  void leave(torch::nn::Module& module, const std::tuple<T...>& outputs) {
    std::apply([&](const T&... output) { (leave(module, output), ...); }, outputs);
  }
  template <typename A, typename B>
  void leave(torch::nn::Module& module, const std::pair<A, B>& outputs) {
    leave(module, outputs.first);
    leave(module, outputs.second);
  }

 private:
  std::weak_ptr<ParameterCoordinator> coordinator_;
  std::unique_ptr<EarlyShards> early_;
  std::string type_; // for part()
};

/// The units of a model, outermost ones only, in the order of registration.
std::vector<Unit*> units_of(torch::nn::Module& model);
/// The tiles within a unit, in the order of registration.
std::vector<Unit*> tiles_of(torch::nn::Module& unit);
/// The parameters of a unit without those of its tiles.
std::vector<at::Tensor> own_parameters(const torch::nn::Module& unit);

} // namespace trireme::zero
