#pragma once

#include <string_view>

namespace trireme::kernels {

/// Instruction sets of the kernels. All give the same bits (see kernels.h).
enum class Simd { scalar, avx2, avx512 };

const char* name(Simd simd);

/// True if this build contains `simd` and this processor can run it.
bool supported(Simd simd);

/// The widest supported set, or TRIREME_SIMD=scalar|avx2|avx512. Read once. Errors: InputError for an unknown or
/// unsupported name.
Simd active_simd();

/// Parses the variable's text for active_simd(). Errors: InputError as there.
Simd parse_simd(std::string_view text);

} // namespace trireme::kernels
