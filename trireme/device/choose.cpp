#include <trireme/device/choose.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/device/options.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace trireme::device {
namespace {

[[noreturn]] void refuse_missing(const std::string& asked, int there) {
  throw InputError("device",
                   concat("device \"", asked, "\" is not available: libtorch sees ",
                          there == 0 ? "no GPU" : concat(there, there == 1 ? " GPU" : " GPUs")),
                   "Use \"auto\" or \"cpu\", or check `trireme doctor`, the driver and CUDA_VISIBLE_DEVICES.");
}

} // namespace

int count(c10::DeviceType type) noexcept {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

std::optional<c10::DeviceType> accelerator() noexcept {
  try {
    const auto type = at::accelerator::getAccelerator(/*checked=*/false);
    return type && count(*type) > 0 ? type : std::nullopt;
  } catch (const std::exception&) { // a libtorch with CUDA but without a driver
    return std::nullopt;
  }
}

c10::Device choose(const std::string& wanted, int local_rank, int local_size) {
  return choose_among(count(c10::kCUDA), wanted, local_rank, local_size);
}

c10::Device choose_among(int gpus, const std::string& wanted, int local_rank, int local_size) {
  const std::string asked = wanted == "auto" ? env::text("TRIREME_DEVICE").value_or(wanted) : wanted;
  if (!is_choice(asked)) {
    throw InputError("device", concat('"', asked, "\" is not a supported device"), kChoices);
  }
  if (asked == "cpu" || (asked == "auto" && gpus == 0)) {
    return c10::kCPU;
  }
  if (const auto number = gpu_number(asked)) {
    if (*number >= gpus) {
      refuse_missing(asked, gpus);
    }
    return {c10::kCUDA, static_cast<c10::DeviceIndex>(*number)};
  }
  if (gpus == 0) {
    refuse_missing(asked, gpus);
  }
  if (local_size > gpus) {
    throw InputError(
        "device", concat("this host has ", local_size, " ranks and libtorch sees ", gpus, gpus == 1 ? " GPU" : " GPUs"),
        concat("Start at most ", gpus, gpus == 1 ? " rank" : " ranks",
               " on it, or use \"training\": {\"device\": \"cpu\"}, or \"cuda:0\" for all ranks on one GPU. In a "
               "program of "
               "yours TRIREME_DEVICE=cpu or cuda:0 says so."));
  }
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
}

} // namespace trireme::device
