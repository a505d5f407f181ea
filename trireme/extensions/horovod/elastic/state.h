#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}
namespace trireme {
class Stateful;
}

namespace trireme::horovod::elastic {

/// State that a run needs to continue after a rank was lost, or with a joining rank. run() calls sync(), restore() and
/// on_reset().
class State {
 public:
  virtual ~State() = default;

  /// Saves the current state. Ends the round if processes have joined or left; then run() calls its function again,
  /// from here. Collective. Cost: a copy of the state, and one small message of rank 0.
  void commit();
  /// Like commit(), without saving: a round that ends here continues with the current state, not with the saved one.
  void check_host_updates();
  /// Registers functions that every rank calls in each new round, after sync(); to scale the learning rate, for
  /// example.
  void register_reset_callbacks(std::vector<std::function<void()>> callbacks);
  void on_reset();

  virtual void save() = 0;
  /// Restores the last saved state.
  virtual void restore() = 0;
  /// Makes all ranks' state that of rank 0, which has been in the run for longest, and saves it. Collective.
  virtual void sync() = 0;

 private:
  std::vector<std::function<void()>> callbacks_;
};

/// Numbers, texts and small states by name. They are the program's own variables and must outlive this.
class ObjectState : public State {
 public:
  /// Errors: InputError for a name that exists already.
  void add(const std::string& name, int64_t& value);
  void add(const std::string& name, double& value);
  void add(const std::string& name, std::string& value);
  /// Adds the state() of a sampler or a schedule, as a checkpoint stores it.
  void add(const std::string& name, Stateful& value);

  void save() override;
  void restore() override;
  void sync() override;

 private:
  struct Object {
    std::function<std::string()> get;
    std::function<void(const std::string&)> set;
  };
  void add_object(const std::string& name, Object object);
  std::string text() const; // all objects as JSON
  void set_text(const std::string& text);

  std::map<std::string, Object> objects_;
  std::string saved_;
};

/// An ObjectState that also has modules (parameters and buffers) and torch optimizers.
///
///   elastic::TorchState state;
///   state.add("model", *model);
///   state.add("optimizer", adam);
///   state.add("step", step);
///
/// The saved copy needs as much memory as the state.
class TorchState : public ObjectState {
 public:
  using ObjectState::add;
  void add(const std::string& name, torch::nn::Module& module);
  /// All its parameters must be on one device.
  void add(const std::string& name, torch::optim::Optimizer& optimizer);

  void save() override;
  void restore() override;
  void sync() override;

 private:
  std::vector<std::pair<std::string, torch::nn::Module*>> modules_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  std::vector<at::Tensor> saved_tensors_;
  std::vector<std::string> saved_optimizers_;
};

} // namespace trireme::horovod::elastic
