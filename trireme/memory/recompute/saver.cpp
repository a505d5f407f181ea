#include <trireme/memory/recompute/saver.h>

#include <trireme/base/error.h>

#include <torch/csrc/autograd/engine.h>

#include <typeinfo>

namespace trireme::recompute {
namespace {

thread_local Saver* present = nullptr;

class AskingEngine : public torch::autograd::Engine {
 public:
  // Engines start device threads at their first backward, but only in the first engine of a process. This starts those
  // of both, in this order.
  explicit AskingEngine(Engine& before) {
    before.initialize_device_threads_pool();
    start_device_threads();
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return present != nullptr ? present->save() : nullptr;
  }
};

// Never destroyed, like libtorch's own: device threads may still use it when the process ends.
torch::autograd::Engine& asking_engine() {
  static auto* const engine = new AskingEngine(torch::autograd::Engine::get_base_engine());
  return *engine;
}

void install() {
  static const bool installed = [] {
    const torch::autograd::Engine& before = torch::autograd::Engine::get_default_engine();
    if (typeid(before) != typeid(torch::autograd::Engine)) {
      throw Error("activations",
                  "autograd's engine in this process is not libtorch's (Python installs another), so saved "
                  "tensors cannot be moved or counted",
                  "Remove \"activation_checkpointing\", or use torch.autograd.graph.saved_tensors_hooks in Python.");
    }
    asking_engine();
    torch::autograd::set_default_engine_stub(&asking_engine);
    return true;
  }();
  static_cast<void>(installed);
}

} // namespace

SavingScope::SavingScope(Saver* saver) : before_(present) {
  if (saver != nullptr) {
    install();
  }
  present = saver;
}

SavingScope::~SavingScope() {
  present = before_;
}

} // namespace trireme::recompute
