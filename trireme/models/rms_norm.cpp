#include <trireme/models/rms_norm.h>

#include <trireme/fused/fused.h>

#include <torch/types.h>

namespace trireme::models {

RmsNormImpl::RmsNormImpl(int64_t features, double eps)
    : weight(register_parameter("weight", torch::ones({features}))), eps(eps) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  return fused::rms_norm(x, weight, eps);
}

} // namespace trireme::models
