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

/// What a run needs to go on after a rank was lost, or with a rank that has come. run() calls sync(), restore() and
/// on_reset().
class State {
 public:
  virtual ~State() = default;

  /// Keeps the state as it is now, and ends the round where processes have come or gone: what run() was given is called
  /// again, from here. All ranks call it together. Cost: a copy of the state, and one small message of rank 0.
  void commit();
  /// The second part of commit() alone: a round that ends so goes on with the state as it is, not with the one that was
  /// kept.
  void check_host_updates();
  /// Calls these on every rank after ranks have met again, after sync(): to scale the learning rate, for example.
  void register_reset_callbacks(std::vector<std::function<void()>> callbacks);
  void on_reset();

  virtual void save() = 0;
  /// Returns to what was kept last.
  virtual void restore() = 0;
  /// Makes all ranks' state that of rank 0, which has been there for longest, and keeps it. Collective.
  virtual void sync() = 0;

 private:
  std::vector<std::function<void()>> callbacks_;
};

/// Numbers, texts and small states by name. They are the program's own variables, and outlive this.
class ObjectState : public State {
 public:
  /// Errors: InputError for a name that is there already.
  void add(const std::string& name, int64_t& value);
  void add(const std::string& name, double& value);
  void add(const std::string& name, std::string& value);
  /// A sampler, a schedule: what a checkpoint would have of it.
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

/// The same with modules (parameters and buffers) and torch's optimizers.
///
///   elastic::TorchState state;
///   state.add("model", *model);
///   state.add("optimizer", adam);
///   state.add("step", step);
///
/// What was kept takes the memory of the state once more.
class TorchState : public ObjectState {
 public:
  using ObjectState::add;
  void add(const std::string& name, torch::nn::Module& module);
  /// Its parameters are on one device.
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
