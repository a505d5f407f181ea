#pragma once

#include <trireme/precision/options.h>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace trireme::precision {

/// Runs operations in a lower type where that is safe (matrix products, convolutions, attention) and in fp32 where it
/// is not (most losses; on CUDA also norms and softmax). Uses ATen's own lists for the device: torch.autocast from C++.
///
///   {
///     const Autocast autocast;              // bf16 on the CPU
///     loss = model->forward(inputs);
///   }
///   loss.backward();                        // outside: operations run in the types of their forward
///
/// Acts on the calling thread. Guards nest; `enabled = false` turns autocast off inside. The end of a guard restores
/// the previous state, also after an exception. Casts of weights are kept until the outermost guard ends, so change no
/// weights inside. Cost: one cast of each weight that does not have the type already.
class Autocast {
 public:
  /// Errors: InputError for a type other than bf16 and fp16, or a device without autocast.
  explicit Autocast(Type type = Type::bf16, c10::DeviceType device = c10::DeviceType::CPU, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_before_;
  c10::ScalarType type_before_;
  bool cache_before_;
};

} // namespace trireme::precision
