#pragma once

#include <string_view>

namespace trireme::kernels {

/// Instruction sets that the kernels exist in. Each gives the same bits (see kernels.h).
enum class Simd { scalar, avx2, avx512 };

const char* name(Simd simd);

/// Says whether this build contains `simd` and this processor can run it.
bool supported(Simd simd);

/// The widest supported set, or the one that TRIREME_SIMD=scalar|avx2|avx512 asks for.
/// Read once. Errors: InputError for an unknown or unsupported name.
Simd active_simd();

/// What active_simd() does with the variable's text. Errors: InputError as there.
Simd parse_simd(std::string_view text);

} // namespace trireme::kernels
