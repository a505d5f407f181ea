#include <trireme/fp8/products.h>

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>

namespace trireme::fp8 {
namespace {

at::Tensor multiply_emulated(const Quantized& a, const Quantized& b, Sums) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  at::Tensor y = at::mm(a.values.to(at::kFloat), b.values.to(at::kFloat).t()); // each product is exact in fp32
  if (a.scale.numel() == 1 && b.scale.numel() == 1) {
    y.mul_(a.scale * b.scale);
  } else {
    y.mul_(a.scale).mul_(b.scale.t());
  }
  return y.to(at::kBFloat16);
}

// One scale, or one for each of `rows`.
at::Tensor scales(const Quantized& x, bool per_row) {
  return per_row ? x.scale.expand({x.values.size(0), 1}).contiguous() : x.scale.squeeze();
}

at::Tensor multiply_on_gpu(const Quantized& a, const Quantized& b, Sums sums) {
  const bool per_row = a.scale.numel() > 1 || b.scale.numel() > 1;
  return at::_scaled_mm(a.values.contiguous(), b.values.contiguous().t(), scales(a, per_row), scales(b, per_row).t(),
                        /*bias=*/{}, /*scale_result=*/{}, at::kBFloat16, sums == Sums::fast);
}

constexpr Products kEmulated{multiply_emulated, true};
constexpr Products kOnGpu{multiply_on_gpu, false};

bool works_on(at::Device device) {
  try {
    const at::Tensor one = at::ones({kMultiple, kMultiple}, at::TensorOptions(device));
    for (const Granularity granularity : {Granularity::tensor, Granularity::row}) {
      const Quantized x = quantize(one, Format::e4m3, granularity, /*power_of_2=*/true);
      if (multiply_on_gpu(x, x, Sums::fast).sum().item<double>() != kMultiple * kMultiple * kMultiple) {
        return false;
      }
    }
    return true;
  } catch (const c10::Error&) {
    return false; // a GPU without FP8, or libtorch without its kernels
  }
}

} // namespace

const Products& products(at::Device device) {
  static std::mutex mutex;
  static std::map<at::Device, bool, bool (*)(at::Device, at::Device)> found(
      [](at::Device a, at::Device b) { return std::hash<at::Device>()(a) < std::hash<at::Device>()(b); });
  if (!device.is_cuda()) {
    return kEmulated;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  const auto known = found.find(device);
  return (known != found.end() ? known->second : found.emplace(device, works_on(device)).first->second) ? kOnGpu
                                                                                                        : kEmulated;
}

} // namespace trireme::fp8
