#pragma once

#include <trireme/kernels/fused_rows.h>

// The kernels of fused_kernels.h that Llama needs beside GPT's, written once; included by each fused_<simd>.cpp.

namespace trireme::kernels {
namespace {

// ---- RMSNorm ----

template <class T>
void rms_norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const auto* const weight = static_cast<const float*>(args.weight);
  const int64_t n = args.columns;
  const float share = 1.0f / static_cast<float>(n);
  for (int64_t row = begin; row < end; ++row) {
    const T* h = static_cast<const T*>(args.x) + row * n;
    Wide squares = Wide::zero();
    if (args.residual != nullptr) {
      const T* x = h;
      const T* residual = static_cast<const T*>(args.residual) + row * n;
      T* out = static_cast<T*>(args.h) + row * n;
      each(n, [&](int64_t j, const auto& at) {
        at.store(at.load(x + j) + at.load(residual + j), out + j);
        const Wide v = at.load(out + j); // as backward will read it
        squares = fma(v, v, squares);
      });
      h = out;
    } else {
      each(n, [&](int64_t j, const auto& at) {
        const Wide v = at.load(h + j);
        squares = fma(v, v, squares);
      });
    }
    const float rstd = 1.0f / __builtin_sqrtf(sum(squares) * share + args.eps);
    const Wide scale = Wide::all(rstd);
    T* y = static_cast<T*>(args.y) + row * n;
    each(n, [&](int64_t j, const auto& at) {
      at.store(at.load(h + j) * scale, y + j); // rounded before the weight
      at.store(at.load(y + j) * at.load(weight + j), y + j);
    });
    args.rstd[row] = rstd;
  }
}

template <class T>
void rms_norm_backward_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const auto* const weight = static_cast<const float*>(args.weight);
  auto* const dweight = static_cast<float*>(args.dweight);
  const int64_t n = args.columns;
  const float share = 1.0f / static_cast<float>(n);
  for (int64_t row = begin; row < end; ++row) {
    const T* h = static_cast<const T*>(args.h) + row * n;
    const T* dy = static_cast<const T*>(args.dy) + row * n;
    const T* dh_in = args.dh_in != nullptr ? static_cast<const T*>(args.dh_in) + row * n : nullptr;
    T* dh = static_cast<T*>(args.dh) + row * n;
    const Wide scale = Wide::all(args.rstd[row]);
    Wide sum_gx = Wide::zero();
    each(n, [&](int64_t j, const auto& at) {
      const Wide d = at.load(dy + j);
      const Wide normal = at.load(h + j) * scale;
      sum_gx = fma(d * at.load(weight + j), normal, sum_gx);
      if (dweight != nullptr) {
        add_to(dweight + j, d * normal, at);
      }
    });
    const Wide mean_gx = Wide::all(sum(sum_gx) * share);
    each(n, [&](int64_t j, const auto& at) {
      const Wide normal = at.load(h + j) * scale;
      Wide d = scale * fnma(normal, mean_gx, at.load(dy + j) * at.load(weight + j));
      if (dh_in != nullptr) {
        d = d + at.load(dh_in + j);
      }
      at.store(d, dh + j);
    });
  }
}

void rms_norm(const RmsNormArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) { rms_norm_rows<decltype(t)>(args, begin, end); });
}

void rms_norm_backward(const RmsNormArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) { rms_norm_backward_rows<decltype(t)>(args, begin, end); });
}

// ---- SwiGLU ----

inline Wide sigmoid(const Wide& x) {
  return Wide::all(1) / (Wide::all(1) + exp(Wide::zero() - x));
}

void gated_silu(const GatedSiluArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) {
    using T = decltype(t);
    const T* gate = static_cast<const T*>(args.gate) + begin;
    const T* up = static_cast<const T*>(args.up) + begin;
    T* y = static_cast<T*>(args.y) + begin;
    each(end - begin, [&](int64_t j, const auto& at) {
      const Wide x = at.load(gate + j);
      at.store(x * sigmoid(x) * at.load(up + j), y + j);
    });
  });
}

void gated_silu_backward(const GatedSiluArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) {
    using T = decltype(t);
    const T* gate = static_cast<const T*>(args.gate) + begin;
    const T* up = static_cast<const T*>(args.up) + begin;
    const T* dy = static_cast<const T*>(args.dy) + begin;
    T* dgate = static_cast<T*>(args.dgate) + begin;
    T* dup = static_cast<T*>(args.dup) + begin;
    each(end - begin, [&](int64_t j, const auto& at) {
      const Wide x = at.load(gate + j);
      const Wide s = sigmoid(x);
      const Wide d = at.load(dy + j);
      const Wide slope = s * fma(x, Wide::all(1) - s, Wide::all(1));
      at.store(d * at.load(up + j) * slope, dgate + j);
      at.store(d * (x * s), dup + j);
    });
  });
}

// ---- rotary positions ----

void rotary(const RotaryArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) {
    using T = decltype(t);
    const int64_t half = args.head_size / 2;
    const Wide sign = Wide::all(args.sign);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t sample = row / args.tokens, token = row % args.tokens;
      const float* cos = args.cos + token * half;
      const float* sin = args.sin + token * half;
      for (int64_t head = 0; head < args.heads; ++head) {
        const T* x =
            static_cast<const T*>(args.x) + sample * args.x_at.sample + head * args.x_at.head + token * args.x_at.row;
        T* y = static_cast<T*>(args.y) + sample * args.y_at.sample + head * args.y_at.head + token * args.y_at.row;
        each(half, [&](int64_t j, const auto& at) {
          const Wide a = at.load(x + j), b = at.load(x + half + j);
          const Wide c = at.load(cos + j), s = at.load(sin + j) * sign;
          at.store(a * c - b * s, y + j);
          at.store(b * c + a * s, y + half + j);
        });
      }
    }
  });
}

} // namespace
} // namespace trireme::kernels
