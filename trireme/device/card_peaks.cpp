#include <trireme/device/card_peaks.h>

#include <algorithm>
#include <iterator>

namespace trireme::device {
namespace {

constexpr double kTera = 1e12;

constexpr CardPeak row(std::string_view name, double fp32, double tf32, double half, double fp8) {
  return {name, fp32 * kTera, tf32 * kTera, half * kTera, fp8 * kTera};
}

// NVIDIA's data sheets and architecture white papers (Ampere GA100 and GA102, Ada, Hopper, Blackwell), in TFLOPS.
// Figures that a data sheet gives with sparsity are halved; GeForce halves products with sums in fp32. The first row
// whose words are all in the name counts, so that special kinds come first.
constexpr CardPeak kPeaks[] = {
    row("GB200", 80, 1250, 2500, 5000),
    row("B200", 75, 1125, 2250, 4500),
    row("GH200", 67, 494.7, 989.4, 1978.9),
    row("H200 NVL", 60, 417.5, 835.5, 1670.5),
    row("H200", 67, 494.7, 989.4, 1978.9),
    row("H100 NVL", 60, 417.5, 835.5, 1670.5),
    row("H100 PCIe", 51.2, 378, 756, 1513),
    row("H100", 67, 494.7, 989.4, 1978.9),
    row("H800 PCIe", 51.2, 378, 756, 1513),
    row("H800", 67, 494.7, 989.4, 1978.9),
    row("H20", 44, 74, 148, 296),
    row("A100", 19.5, 156, 312, 0),
    row("A800", 19.5, 156, 312, 0),
    row("A30", 10.3, 82, 165, 0),
    row("A10", 31.2, 62.5, 125, 0),
    row("L40S", 91.6, 183, 362, 733),
    row("L4", 30.3, 60, 121, 242.5),
    row("RTX A6000", 38.7, 77.4, 154.8, 0),
    row("RTX 5090", 104.8, 104.8, 209.5, 419),
    row("RTX 4090", 82.6, 82.6, 165.2, 330.3),
    row("RTX 3090", 35.6, 35.6, 71, 0),
};

constexpr std::string_view kBetweenWords = " -";

/// Calls f(word) until it returns false; whether it never did.
template <class F>
bool all_words(std::string_view text, const F& f) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(kBetweenWords, begin), text.size());
    if (end > begin && !f(text.substr(begin, end - begin))) {
      return false;
    }
    begin = end + 1;
  }
  return true;
}

bool has_word(std::string_view text, std::string_view wanted) {
  return !all_words(text, [&](std::string_view word) { return word != wanted; });
}

} // namespace

double CardPeak::of(ProductType type) const {
  switch (type) {
    case ProductType::fp32:
      return fp32;
    case ProductType::tf32:
      return tf32;
    case ProductType::half:
      return half;
    default:
      return fp8;
  }
}

std::optional<CardPeak> peak_of_card(std::string_view name) {
  if (has_word(name, "MIG") || has_word(name, "Laptop")) {
    return std::nullopt;
  }
  const auto* const found = std::find_if(std::begin(kPeaks), std::end(kPeaks), [&](const CardPeak& peak) {
    return all_words(peak.name, [&](std::string_view word) { return has_word(name, word); });
  });
  return found == std::end(kPeaks) ? std::nullopt : std::optional(*found);
}

} // namespace trireme::device
