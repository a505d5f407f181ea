#include <trireme/extensions/horovod/distributed_optimizer.h>

#include <trireme/base/error.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace trireme::horovod {
namespace {

class AfterAccumulation : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterAccumulation(std::function<void()> f) : f_(std::move(f)) {}
  void operator()(const torch::autograd::Variable&) override { f_(); }

 private:
  std::function<void()> f_;
};

template <typename Options>
bool decays(torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    return static_cast<const Options&>(group.options()).weight_decay() != 0;
  });
}

/// Names the torch optimizer if it cannot step sparse gradients; empty if it can, or is not torch's.
std::string why_dense_only(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) {
    return "torch::optim::Adam";
  }
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
    return "torch::optim::AdamW";
  }
  if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) {
    return "torch::optim::RMSprop";
  }
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr && decays<torch::optim::SGDOptions>(optimizer)) {
    return "torch::optim::SGD with weight decay";
  }
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr && decays<torch::optim::AdagradOptions>(optimizer)) {
    return "torch::optim::Adagrad with weight decay";
  }
  return "";
}

} // namespace

class DistributedOptimizer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(torch::optim::Optimizer& optimizer, std::vector<std::pair<std::string, at::Tensor>> named,
       const DistributedOptimizerOptions& options)
      : optimizer_(optimizer), options_(options) {
    check_options();
    std::set<std::string> names;
    std::map<const void*, std::string> names_of_tensors;
    for (const auto& [name, tensor] : named) {
      if (!names.insert(name).second) {
        throw InputError("horovod", concat("two parameters are called \"", name, "\""),
                         "Name each parameter once, as Module::named_parameters() does.");
      }
      names_of_tensors.try_emplace(tensor.unsafeGetTensorImpl(), name);
    }
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& tensor : group.params()) {
        add(tensor, names_of_tensors); // frozen ones may be unfrozen later
      }
    }
  }

  // Called after construction, because hooks hold a weak pointer.
  void install_hooks() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i].tensor,
                                                     std::make_unique<AfterAccumulation>([weak = weak_from_this(), i] {
                                                       if (const auto self = weak.lock()) {
                                                         self->gradient_ready(i);
                                                       }
                                                     }));
    }
  }
  void remove_hooks() {
    for (const Parameter& parameter : parameters_) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
    }
  }

  void step() {
    if (options_.op == Op::adasum) {
      step_adasum();
    } else {
      if (!synchronized_) {
        synchronize();
      }
      optimizer_.step();
    }
    begin_anew();
    synchronized_ = false;
  }

  void synchronize() {
    if (options_.op == Op::adasum) {
      throw InputError("horovod", "synchronize() with Op::adasum, which combines steps, not gradients",
                       "Call only step().");
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].travels() && parameters_[i].tensor.requires_grad()) {
        send(i);
      }
    }
    for (Parameter& parameter : parameters_) {
      if (parameter.rows) {
        parameter.tensor.mutable_grad() = horovod::synchronize(*std::exchange(parameter.rows, std::nullopt));
      } else if (parameter.handle != nullptr) {
        synchronize_all(std::exchange(parameter.handle, nullptr));
      }
    }
    begin_anew();
    synchronized_ = true;
  }

  void zero_grad() {
    for (const Parameter& parameter : parameters_) {
      if (parameter.travels()) {
        throw InputError("horovod", concat("zero_grad() while the gradient of \"", parameter.name, "\" is being sent"),
                         "Call step() or synchronize() first.");
      }
    }
    begin_anew();
    synchronized_ = false; // the caller may skip a step
    optimizer_.zero_grad();
  }

 private:
  void add(const at::Tensor& tensor, const std::map<const void*, std::string>& names) {
    const auto name = names.find(tensor.unsafeGetTensorImpl());
    if (name == names.end()) {
      throw InputError(
          "horovod",
          concat("the optimizer has a parameter of sizes ", tensor.sizes(), " that is not in named_parameters"),
          "Pass the named parameters of all models that it steps.");
    }
    if (torch::autograd::impl::post_acc_grad_hooks(tensor) != nullptr) {
      throw InputError(
          "horovod",
          concat("\"", name->second,
                 "\" has a hook after accumulation already: another DistributedOptimizer's, or DataParallel's"),
          "Give the parameter to one of them, and destroy that before the next one is made.");
    }
    parameters_.push_back({name->second, tensor});
  }

  struct Parameter {
    std::string name;
    at::Tensor tensor;
    int64_t passes = 0;
    Handle handle = nullptr;               // allreduce of its gradient
    std::optional<SparseHandle> rows = {}; // of a sparse gradient
    int64_t sparse_dim = 0;                // of its gradients; 0: dense so far

    bool travels() const { return handle != nullptr || rows.has_value(); }
    at::Tensor no_gradient() const {
      if (sparse_dim == 0) {
        return at::zeros_like(tensor);
      }
      std::vector<int64_t> values = tensor.sizes().slice(static_cast<size_t>(sparse_dim)).vec();
      values.insert(values.begin(), 0);
      return at::sparse_coo_tensor(at::zeros({sparse_dim, 0}, tensor.options().dtype(at::kLong)),
                                   at::zeros(values, tensor.options()), tensor.sizes());
    }
  };

  void begin_anew() {
    for (Parameter& parameter : parameters_) {
      parameter.passes = 0;
    }
  }

  void check_options() const {
    if (options_.backward_passes_per_step < 1) {
      throw InputError("horovod", concat("backward_passes_per_step is ", options_.backward_passes_per_step),
                       "Use 1 or more.");
    }
    if (options_.gradient_predivide_factor != 1 && options_.op != Op::average) {
      throw InputError("horovod", concat("gradient_predivide_factor with ", name_of(options_.op)),
                       "Use Op::average, or leave the factor at 1.");
    }
    if (options_.op != Op::average && options_.op != Op::sum && options_.op != Op::adasum) {
      throw InputError("horovod", concat("DistributedOptimizer does not support ", name_of(options_.op)),
                       "Use Op::average, Op::sum or Op::adasum.");
    }
    const int ranks = options_.process_set.size();
    if (options_.op == Op::adasum && (ranks & (ranks - 1)) != 0) {
      throw InputError("horovod", concat("Adasum over ", ranks, " ranks: their number must be a power of two"),
                       "Use Op::average, or another number of ranks.");
    }
  }

  void gradient_ready(size_t i) {
    Parameter& parameter = parameters_[i];
    ++parameter.passes;
    if (options_.op == Op::adasum) {
      return;
    }
    if (parameter.travels() || parameter.passes > options_.backward_passes_per_step) {
      throw InputError("horovod",
                       concat("\"", parameter.name, "\" got a gradient in backward pass ", parameter.passes,
                              " of a step, but backward_passes_per_step is ", options_.backward_passes_per_step),
                       "Call step() after that many backward passes, or set backward_passes_per_step.");
    }
    if (parameter.passes == options_.backward_passes_per_step) {
      send(i);
    }
  }

  void send(size_t i) {
    Parameter& parameter = parameters_[i];
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (!grad.defined()) {
      const at::NoGradGuard no_grad;
      grad = parameter.no_gradient();
    }
    if (grad.is_sparse() && options_.sparse_as_dense) {
      grad = grad.to_dense();
    }
    if (grad.is_sparse()) {
      if (const std::string why = why_dense_only(optimizer_); !why.empty()) {
        throw InputError(
            "horovod", concat("parameter \"", parameter.name, "\" has a sparse gradient, which ", why, " cannot step"),
            "Set sparse_as_dense, use SGD or Adagrad without weight decay, or build the embedding without "
            "sparse(true).");
      }
      parameter.sparse_dim = grad.sparse_dim();
      parameter.rows = sparse_allreduce_async(grad, reduction("gradient." + parameter.name));
      return;
    }
    parameter.handle = allreduce_async_(grad, reduction("gradient." + parameter.name));
  }

  AllreduceOptions reduction(std::string name) const {
    AllreduceOptions options;
    options.name = std::move(name);
    options.op = options_.op;
    options.compression = options_.compression;
    options.process_set = options_.process_set;
    options.prescale = 1 / options_.gradient_predivide_factor;
    options.postscale = options_.gradient_predivide_factor;
    return options;
  }

  void step_adasum() {
    const at::NoGradGuard no_grad;
    std::vector<const Parameter*> trained;
    std::vector<at::Tensor> before;
    for (const Parameter& parameter : parameters_) {
      if (parameter.tensor.requires_grad()) {
        trained.push_back(&parameter);
        before.push_back(parameter.tensor.detach().clone());
      }
    }
    optimizer_.step();
    std::vector<Handle> handles;
    for (size_t i = 0; i < trained.size(); ++i) {
      const at::Tensor change = trained[i]->tensor.detach() - before[i];
      handles.push_back(allreduce_async_(change, reduction("change." + trained[i]->name)));
    }
    for (size_t i = 0; i < trained.size(); ++i) {
      trained[i]->tensor.copy_(before[i] + horovod::synchronize(handles[i]));
    }
  }

  torch::optim::Optimizer& optimizer_;
  DistributedOptimizerOptions options_;
  std::vector<Parameter> parameters_;
  bool synchronized_ = false;
};

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           std::vector<std::pair<std::string, at::Tensor>> named_parameters,
                                           const DistributedOptimizerOptions& options)
    : impl_(std::make_shared<Impl>(optimizer, std::move(named_parameters), options)) {
  impl_->install_hooks();
}
DistributedOptimizer::~DistributedOptimizer() {
  if (impl_) {
    impl_->remove_hooks();
  }
}
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;
DistributedOptimizer& DistributedOptimizer::operator=(DistributedOptimizer&&) noexcept = default;

void DistributedOptimizer::step() {
  impl_->step();
}
void DistributedOptimizer::synchronize() {
  impl_->synchronize();
}
void DistributedOptimizer::zero_grad() {
  impl_->zero_grad();
}

} // namespace trireme::horovod
