#pragma once

#include <trireme/comm/group.h>
#include <trireme/models/language_model.h>

#include <ATen/core/ScalarType.h>

namespace trireme::generate {

/// The type that weights of linear layers and the token embedding have while a model generates text.
enum class WeightType {
  same, ///< that of everything else
  int8  ///< packed by fused::pack_int8()
};

/// Converts a model of fp32 on the CPU for generation: everything to `type`, fp32 or bf16, and weights as `weights`
/// selects. int8 weights are packed from the fp32 values, and the model cannot be trained afterwards. `ranks`: those
/// that split the model, which call it together for int8; its weights are then those of one rank, to the bit. Memory: a
/// layer's weight at a time. Errors: InputError for int8 weights on a processor without AVX2, where they would be
/// slower, and for those of a split model without its ranks.
void convert_weights(const models::LanguageModel& model, at::ScalarType type, WeightType weights,
                     const comm::Group& ranks = {});

} // namespace trireme::generate
