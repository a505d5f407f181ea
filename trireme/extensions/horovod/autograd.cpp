#include <trireme/extensions/horovod/autograd.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <utility>

namespace trireme::horovod {
namespace {

namespace autograd = torch::autograd;

/// Passes the backward function from forward to backward.
struct HeldBackward : torch::CustomClassHolder {
  explicit HeldBackward(Backward call) : call(std::move(call)) {}
  Backward call;
};

/// Hides tensors from autograd, which takes all tensor arguments of a function as its inputs.
struct Results {
  std::vector<at::Tensor> tensors;
};

class Exchanged : public autograd::Function<Exchanged> {
 public:
  static autograd::variable_list forward(autograd::AutogradContext* context, at::TensorList inputs, Results outputs,
                                         const c10::intrusive_ptr<HeldBackward>& backward) {
    context->saved_data["backward"] = c10::IValue::make_capsule(backward);
    context->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    return std::move(outputs.tensors);
  }
  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    autograd::variable_list of_inputs =
        c10::static_intrusive_pointer_cast<HeldBackward>(context->saved_data["backward"].toCapsule())->call(gradients);
    of_inputs.resize(static_cast<size_t>(context->saved_data["inputs"].toInt()) + 2); // none for the other arguments
    return of_inputs;
  }
};

} // namespace

bool follows(const std::vector<at::Tensor>& tensors) {
  return at::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
           return tensor.defined() && tensor.requires_grad();
         });
}

std::vector<at::Tensor> with_gradient(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                                      Backward backward) {
  return Exchanged::apply(at::TensorList(inputs), Results{std::move(outputs)},
                          c10::make_intrusive<HeldBackward>(std::move(backward)));
}

} // namespace trireme::horovod
