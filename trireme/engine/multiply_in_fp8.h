#pragma once

#include <trireme/engine/parts.h>

namespace trireme::engine {

/// Makes the model's linear layers multiply in FP8 as Settings::precision says, or no longer: every
/// tensor::ColumnParallelLinear and RowParallelLinear whose sizes fit on all tensor ranks and whose name no filter
/// matches. Reports on the first rank how many these are, and whether the device emulates their products. Collective
/// over the tensor and pipe axes. Errors: InputError on every rank if there are none.
void multiply_in_fp8(Parts& parts);

} // namespace trireme::engine
