#include <trireme/precision/half_products.h>

#include <trireme/kernels/simd.h>

#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace trireme::precision {
namespace {

constexpr int64_t kBlock = int64_t{1} << 18; // elements of an fp32 copy: 1 MB
constexpr int64_t kMostDepth = 1024;         // of a block: it has 256 rows at least, and copies cost little
constexpr int64_t kLeastRows = 4;

// beta * addend + alpha * a b. Without an addend a b.
struct Sum {
  std::optional<at::Tensor> addend = std::nullopt; // [n, m], or [batch, n, m]
  at::Scalar beta = 1;
  at::Scalar alpha = 1;

  template <typename Block>
  Sum part(const Block& block) const {
    return {addend ? std::optional(block(*addend)) : std::nullopt, beta, alpha};
  }
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

// A thread's fp32 copies, kept for its next product: malloc would leave holes of them between blocks that stay.
at::Tensor scratch(int place, at::IntArrayRef sizes) {
  struct Memory {
    c10::DataPtr data;
    size_t bytes = 0;
  };
  thread_local std::array<Memory, 3> places;
  Memory& memory = places.at(place);
  const size_t bytes = c10::multiply_integers(sizes) * sizeof(float);
  if (memory.bytes < bytes) {
    memory = {}; // also if there is no memory for more
    memory = {c10::GetCPUAllocator()->allocate(bytes), bytes};
  }
  return at::from_blob(memory.data.get(), sizes, at::kFloat);
}

// With the same order of dimensions: a transposed matrix stays one.
at::Tensor fp32(int place, const at::Tensor& tensor) {
  if (tensor.stride(-1) != 1 && tensor.stride(-2) == 1) {
    return fp32(place, tensor.transpose(-2, -1)).transpose(-2, -1);
  }
  return scratch(place, tensor.sizes()).copy_(tensor);
}

// Of fp32 blocks: `result` is the addend, or unset.
void multiply_block(at::Tensor& result, const at::Tensor& left, const at::Tensor& right, const Sum& sum) {
  const bool batch = result.dim() == 3;
  if (sum.addend) {
    batch ? at::cpu::baddbmm_(result, left, right, sum.beta, sum.alpha)
          : at::cpu::addmm_(result, left, right, sum.beta, sum.alpha);
  } else {
    batch ? at::cpu::bmm_out(result, left, right) : at::cpu::mm_out(result, left, right);
  }
}

// Where the result of a block is, with the addend in it.
at::Tensor begin_result(const at::Tensor& out, const Sum& sum) {
  at::Tensor result = scratch(2, out.sizes());
  return sum.addend ? result.copy_(*sum.addend) : result;
}

// Calls f(begin, count) for blocks of [0, size), of which one has `each` elements.
void in_blocks(int64_t size, int64_t each, const std::function<void(int64_t, int64_t)>& f) {
  const int64_t most = std::max<int64_t>(1, kBlock / std::max<int64_t>(each, 1));
  for (int64_t begin = 0; begin < size; begin += most) {
    f(begin, std::min(most, size - begin));
  }
}

void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Sum& sum) {
  const int64_t n = a.size(0), k = a.size(1), m = b.size(1);
  const int64_t depth = std::min(k, kMostDepth);
  in_blocks(m, depth, [&](int64_t column, int64_t columns) {
    at::Tensor right; // kept for all rows where it is whole
    in_blocks(n, std::max(depth, columns), [&](int64_t row, int64_t rows) {
      const auto block = [&](const at::Tensor& whole) { return whole.narrow(0, row, rows).narrow(1, column, columns); };
      Sum rest = sum.part(block);
      at::Tensor result = begin_result(block(out), rest);
      for (int64_t begin = 0; begin == 0 || begin < k; begin += kMostDepth) {
        const int64_t inner = std::min(kMostDepth, k - begin);
        if (!right.defined() || k > kMostDepth) {
          right = fp32(1, b.narrow(0, begin, inner).narrow(1, column, columns));
        }
        multiply_block(result, fp32(0, a.narrow(0, row, rows).narrow(1, begin, inner)), right, rest);
        rest = {result, 1, sum.alpha}; // the next ones are added
      }
      block(out).copy_(result);
    });
  });
}

void multiply_batch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Sum& sum) {
  const int64_t n = a.size(1), k = a.size(2), m = b.size(2);
  const int64_t each = std::max({n * k, k * m, n * m});
  in_blocks(a.size(0), each, [&](int64_t begin, int64_t count) {
    if (each > kBlock) {
      const auto matrix = [&](const at::Tensor& whole) { return whole.select(0, begin); };
      multiply(matrix(out), matrix(a), matrix(b), sum.part(matrix));
    } else {
      const auto block = [&](const at::Tensor& whole) { return whole.narrow(0, begin, count); };
      at::Tensor result = begin_result(block(out), sum.part(block));
      multiply_block(result, fp32(0, block(a)), fp32(1, block(b)), sum);
      block(out).copy_(result);
    }
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
  if (type != at::kBFloat16 && type != at::kHalf) {
    return true;
  }
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAvxNeConvert = 1 << 5; // GCC 12 has no name for it
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAvxNeConvert) != 0) {
    return true;
  }
  __builtin_cpu_init();
  return type == at::kHalf ? __builtin_cpu_supports("avx512fp16") != 0 : kernels::supported(kernels::Simd::avx512);
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
