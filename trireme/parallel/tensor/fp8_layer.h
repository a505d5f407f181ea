#pragma once

#include <trireme/fp8/options.h>

#include <memory>
#include <utility>

namespace trireme::tensor {

/// A linear layer whose products may run in FP8 (fp8/linear.h). Without options it costs a comparison.
class Fp8Layer {
 public:
  /// Multiplies in FP8 from the next forward on; nullptr: no longer. The weight must be one that fp8::fits().
  void multiply_in_fp8(std::shared_ptr<const fp8::Options> options) { options_ = std::move(options); }
  /// nullptr: products are of the type of the input.
  const fp8::Options* fp8() const { return options_.get(); }

 private:
  std::shared_ptr<const fp8::Options> options_;
};

} // namespace trireme::tensor
