#pragma once

#include <optional>
#include <string_view>

namespace trireme::device {

/// What the matrix products of a training are computed in.
enum class ProductType { fp32, tf32, half, fp8 };

/// Most floating-point operations per second of a GPU's matrix products, dense, sums in fp32; 0: it has none.
struct CardPeak {
  /// Words of the GPU's name as CUDA reports it, all of which must be in it: "H100 PCIe".
  std::string_view name;
  double fp32 = 0; ///< without tensor cores
  double tf32 = 0;
  double half = 0; ///< bf16 and fp16
  double fp8 = 0;

  double of(ProductType type) const;
};

/// The row of a table for "NVIDIA H100 80GB HBM3"; nullopt for a GPU that is not in it. A part of a GPU (MIG) is not.
std::optional<CardPeak> peak_of_card(std::string_view name);

} // namespace trireme::device
