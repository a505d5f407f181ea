#include <trireme/kernels/simd.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>

#include <array>
#include <string>

namespace trireme::kernels {

namespace {

constexpr std::array kAll = {Simd::avx512, Simd::avx2, Simd::scalar};

Simd widest() {
  for (Simd simd : kAll) {
    if (supported(simd)) {
      return simd;
    }
  }
  return Simd::scalar;
}

} // namespace

const char* name(Simd simd) {
  switch (simd) {
    case Simd::avx512:
      return "avx512";
    case Simd::avx2:
      return "avx2";
    case Simd::scalar:
      break;
  }
  return "scalar";
}

bool supported(Simd simd) {
  if (simd == Simd::scalar) {
    return true;
  }
#ifdef TRIREME_KERNELS_X86
  __builtin_cpu_init();
  if (simd == Simd::avx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  }
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && supported(Simd::avx2);
#else
  return false;
#endif
}

Simd parse_simd(std::string_view text) {
  std::string choices;
  for (Simd simd : kAll) {
    if (!supported(simd)) {
      continue;
    }
    if (text == name(simd)) {
      return simd;
    }
    choices += (choices.empty() ? "" : ", ") + std::string(name(simd));
  }
  throw InputError("kernels", concat("TRIREME_SIMD is \"", text, "\", which this machine cannot run."),
                   concat("Unset it, or use one of: ", choices, "."));
}

Simd active_simd() {
  static const Simd simd = [] {
    const auto asked = env::text("TRIREME_SIMD");
    return asked ? parse_simd(*asked) : widest();
  }();
  return simd;
}

} // namespace trireme::kernels
