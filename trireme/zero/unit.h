#pragma once

#include <trireme/activations/activations.h>

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

/// What is Sharded about a module: which coordinator gathers its parameters, and what zero::Init left of them.
class Unit {
 public:
  Unit();
  virtual ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  virtual torch::nn::Module& module() = 0;
  /// Whether it is a unit by itself within another one, too, of which everything else stays while it is used. Else it
  /// is a part of that.
  virtual bool is_tile() const {
    return false;
  }

  /// From now on `coordinator` is told when the parameters are needed; what Init left is dropped.
  void join(const std::shared_ptr<ParameterCoordinator>& coordinator);
  /// Makes parameters that Init has sharded whole; they stay so until join(). Collective then. Returns whether it had
  /// to.
  bool make_whole();

 protected:
  void built(torch::nn::Module& module);
  /// The module as a part of the model, of class `type`.
  activations::Part part(torch::nn::Module& module, const std::type_info& type);
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
