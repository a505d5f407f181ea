#pragma once

#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};

inline float __half2float(__half x) {
  const int exponent = x.bits >> 10 & 31;
  const int fraction = x.bits & 0x3ff;
  float value = 0;
  if (exponent == 31) {
    value = fraction != 0 ? std::nanf("") : INFINITY;
  } else {
    value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                          : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  }
  return (x.bits & 0x8000) != 0 ? -value : value;
}

/// To nearest, ties to even: that is how nearbyint() rounds.
inline __half __float2half_rn(float x) {
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const float magnitude = std::fabs(x);
  int bits = 0;
  if (x != x) {
    bits = 0x7e00;
  } else if (magnitude >= 65520.0F) {
    bits = 0x7c00;
  } else if (magnitude < 0x1p-14F) {
    bits = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 24)));
  } else {
    const int exponent = std::ilogb(magnitude);
    bits = ((exponent + 15) << 10) + static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent))) -
           1024; // a carry is right
  }
  return {static_cast<uint16_t>(sign | bits)};
}
