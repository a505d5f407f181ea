#include <trireme/device/cards.h>

#include <trireme/base/error.h>

#include <cuda_runtime_api.h>

#include <fstream>

namespace trireme::device {
namespace {

/// Reads "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ...": returns the first word of digits
/// and points, "" if unknown.
std::string kernel_module() {
  std::ifstream in("/proc/driver/nvidia/version");
  for (std::string word; in >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) {
      return word;
    }
  }
  return "";
}

} // namespace

Cards cuda_cards() noexcept {
  Cards found;
  try {
    int version = 0;
    if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) {
      return found;
    }
    const std::string module = kernel_module();
    found.driver =
        concat("CUDA ", version / 1000, '.', version % 1000 / 10, module.empty() ? "" : ", driver " + module);
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
      (void)cudaGetLastError(); // clears the error for later calls
      count = 0;
    }
    for (int index = 0; index < count; ++index) {
      cudaDeviceProp card;
      if (cudaGetDeviceProperties(&card, index) == cudaSuccess) {
        char pci[32] = {};
        if (cudaDeviceGetPCIBusId(pci, sizeof pci, index) != cudaSuccess) {
          pci[0] = '\0';
        }
        found.cards.push_back({card.name, static_cast<int64_t>(card.totalGlobalMem), card.major, card.minor, pci});
      } else {
        (void)cudaGetLastError();
        found.cards.push_back({"a GPU that does not respond", 0, 0, 0, ""});
      }
    }
  } catch (const std::exception&) {
    // No memory for the names: returns what was found.
  }
  return found;
}

bool knows_cuda() noexcept {
  return true;
}

} // namespace trireme::device
