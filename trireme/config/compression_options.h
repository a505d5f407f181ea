#pragma once

#include <cstdint>

namespace trireme::compress {

/// Options of gradient compression with error feedback, for any optimizer.
struct GradientCompressionOptions {
  /// sign, eight_bit, top_k: comm::CompressedAllReduce with these compressors. power_sgd: comm::PowerSgd.
  enum class Kind { none, sign, eight_bit, top_k, power_sgd };

  Kind kind = Kind::none;
  /// power_sgd: number of columns of a matrix's factors.
  int64_t rank = 4;
  /// top_k: the share of the elements that is sent.
  double ratio = 0.01;
  /// Number of steps whose gradients are sent uncompressed.
  int64_t start_step = 0;

  bool on() const { return kind != Kind::none; }
  static constexpr const char* name(Kind kind) {
    switch (kind) {
      case Kind::sign:
        return "sign";
      case Kind::eight_bit:
        return "eight_bit";
      case Kind::top_k:
        return "top_k";
      case Kind::power_sgd:
        return "power_sgd";
      case Kind::none:
        break;
    }
    return "none";
  }
};

} // namespace trireme::compress
