#include <trireme/precision/half_products.h>

#include <trireme/kernels/simd.h>

#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <optional>

namespace trireme::precision {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 24; // of an fp32 copy: 64 MB
constexpr int64_t kLeastRows = 4;

// beta * addend + alpha * a b. Without an addend a b.
struct Sum {
  std::optional<at::Tensor> addend = std::nullopt; // [n, m], or [batch, n, m]
  at::Scalar beta = 1;
  at::Scalar alpha = 1;
};

bool is_slow(const at::Tensor& tensor) {
  static const bool bf16 = !has_fast_products(at::kBFloat16);
  static const bool fp16 = !has_fast_products(at::kHalf);
  return tensor.scalar_type() == at::kBFloat16 ? bf16 : tensor.scalar_type() == at::kHalf && fp16;
}

at::DimVector sizes_of(const at::Tensor& a, const at::Tensor& b) {
  at::DimVector sizes(a.sizes());
  sizes.back() = b.size(-1);
  return sizes;
}

// False for what ATen's kernel refuses, and for a few rows: converting the other operand would take longer.
bool takes(const at::Tensor& a, const at::Tensor& b, int64_t dims, const at::Tensor& addend = {}) {
  return is_slow(a) && b.scalar_type() == a.scalar_type() && a.dim() == dims && b.dim() == dims &&
         a.size(-1) == b.size(-2) && (dims == 2 || a.size(0) == b.size(0)) && a.size(-2) >= kLeastRows &&
         b.size(-1) >= kLeastRows && (!addend.defined() || addend.scalar_type() == a.scalar_type());
}

// Whether ATen would write such a product here without a warning.
bool fits(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  return out.scalar_type() == a.scalar_type() && (out.numel() == 0 || out.sizes() == at::IntArrayRef(sizes_of(a, b)));
}

at::Tensor fp32(const at::Tensor& tensor) {
  return tensor.to(at::kFloat);
}

// Calls f(begin, count) for blocks of [0, size), of which one has `each` elements.
void in_blocks(int64_t size, int64_t each, const std::function<void(int64_t, int64_t)>& f) {
  const int64_t most = std::max<int64_t>(1, kMostElements / std::max<int64_t>(each, 1));
  for (int64_t begin = 0; begin < size; begin += most) {
    f(begin, std::min(most, size - begin));
  }
}

void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Sum& sum) {
  const int64_t n = a.size(0), k = a.size(1), m = b.size(1);
  const int64_t dim = m >= n ? 1 : 0; // the longer one is split
  const at::Tensor whole = fp32(dim == 1 ? a : b);
  in_blocks(dim == 1 ? m : n, std::max(k, dim == 1 ? n : m), [&](int64_t begin, int64_t count) {
    const at::Tensor part = fp32((dim == 1 ? b : a).narrow(dim, begin, count));
    const at::Tensor& left = dim == 1 ? whole : part;
    const at::Tensor& right = dim == 1 ? part : whole;
    out.narrow(dim, begin, count)
        .copy_(sum.addend
                   ? at::cpu::addmm(fp32(sum.addend->narrow(dim, begin, count)), left, right, sum.beta, sum.alpha)
                   : at::cpu::mm(left, right));
  });
}

void multiply_batch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Sum& sum) {
  const int64_t n = a.size(1), k = a.size(2), m = b.size(2);
  in_blocks(a.size(0), std::max({n * k, k * m, n * m}), [&](int64_t begin, int64_t count) {
    const at::Tensor left = fp32(a.narrow(0, begin, count));
    const at::Tensor right = fp32(b.narrow(0, begin, count));
    out.narrow(0, begin, count)
        .copy_(sum.addend
                   ? at::cpu::baddbmm(fp32(sum.addend->narrow(0, begin, count)), left, right, sum.beta, sum.alpha)
                   : at::cpu::bmm(left, right));
  });
}

at::Tensor& product_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Sum& sum = {}) {
  if (const at::DimVector sizes = sizes_of(a, b); out.sizes() != at::IntArrayRef(sizes)) {
    out.resize_(sizes);
  }
  a.dim() == 2 ? multiply(out, a, b, sum) : multiply_batch(out, a, b, sum);
  return out;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const Sum& sum = {}) {
  at::Tensor out = at::empty(sizes_of(a, b), a.options());
  return product_into(out, a, b, sum);
}

Sum sum_of(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
           const at::Scalar& alpha) {
  return {addend.expand(sizes_of(a, b)), beta, alpha};
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  return takes(a, b, 2) ? product(a, b) : at::cpu::mm(a, b);
}

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return takes(a, b, 2) && fits(out, a, b) ? product_into(out, a, b) : at::cpu::mm_out(out, a, b);
}

at::Tensor bmm(const at::Tensor& a, const at::Tensor& b) {
  return takes(a, b, 3) ? product(a, b) : at::cpu::bmm(a, b);
}

at::Tensor& bmm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return takes(a, b, 3) && fits(out, a, b) ? product_into(out, a, b) : at::cpu::bmm_out(out, a, b);
}

at::Tensor addmm(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  return takes(a, b, 2, addend) ? product(a, b, sum_of(addend, a, b, beta, alpha))
                                : at::cpu::addmm(addend, a, b, beta, alpha);
}

at::Tensor& addmm_out(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                      const at::Scalar& alpha, at::Tensor& out) {
  return takes(a, b, 2, addend) && fits(out, a, b) ? product_into(out, a, b, sum_of(addend, a, b, beta, alpha))
                                                   : at::cpu::addmm_out(out, addend, a, b, beta, alpha);
}

at::Tensor& addmm_(at::Tensor& addend, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                   const at::Scalar& alpha) {
  return takes(a, b, 2, addend) && addend.sizes() == at::IntArrayRef(sizes_of(a, b))
             ? product_into(addend, a, b, {addend, beta, alpha})
             : at::cpu::addmm_(addend, a, b, beta, alpha);
}

at::Tensor baddbmm(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                   const at::Scalar& alpha) {
  return takes(a, b, 3, addend) ? product(a, b, sum_of(addend, a, b, beta, alpha))
                                : at::cpu::baddbmm(addend, a, b, beta, alpha);
}

at::Tensor& baddbmm_out(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                        const at::Scalar& alpha, at::Tensor& out) {
  return takes(a, b, 3, addend) && fits(out, a, b) ? product_into(out, a, b, sum_of(addend, a, b, beta, alpha))
                                                   : at::cpu::baddbmm_out(out, addend, a, b, beta, alpha);
}

at::Tensor& baddbmm_(at::Tensor& addend, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                     const at::Scalar& alpha) {
  return takes(a, b, 3, addend) && addend.sizes() == at::IntArrayRef(sizes_of(a, b))
             ? product_into(addend, a, b, {addend, beta, alpha})
             : at::cpu::baddbmm_(addend, a, b, beta, alpha);
}

// libtorch warns of each replaced kernel.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void replace_kernels() {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  // Never deleted: the destructor would remove the kernels while threads may run them.
  static auto* const aten = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  aten->impl("mm", TORCH_FN(mm));
  aten->impl("mm.out", TORCH_FN(mm_out));
  aten->impl("bmm", TORCH_FN(bmm));
  aten->impl("bmm.out", TORCH_FN(bmm_out));
  aten->impl("addmm", TORCH_FN(addmm));
  aten->impl("addmm.out", TORCH_FN(addmm_out));
  aten->impl("addmm_", TORCH_FN(addmm_));
  aten->impl("baddbmm", TORCH_FN(baddbmm));
  aten->impl("baddbmm.out", TORCH_FN(baddbmm_out));
  aten->impl("baddbmm_", TORCH_FN(baddbmm_));
}

} // namespace

bool has_fast_products(c10::ScalarType type) {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (type == at::kHalf) {
    return __builtin_cpu_supports("avx512fp16") != 0;
  }
  return type != at::kBFloat16 || kernels::supported(kernels::Simd::avx512);
#else
  (void)type; // libtorch has kernels of its own for Arm
  return true;
#endif
}

void multiply_halves_in_fp32() {
  static const bool done = [] {
    if (!has_fast_products(at::kBFloat16) || !has_fast_products(at::kHalf)) {
      replace_kernels();
    }
    return true;
  }();
  (void)done;
}

} // namespace trireme::precision
