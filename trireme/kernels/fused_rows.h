#pragma once

#include <trireme/kernels/fused_kernels.h>
#include <trireme/kernels/wide.h>

// Row-wise kernels of fused_kernels.h, written once; included by each fused_<simd>.cpp.

namespace trireme::kernels {
namespace {

/// Access to the 16 columns from j on: all of them, or the last n of a row.
struct Whole {
  template <class T>
  Wide load(const T* p) const {
    return Wide::load(p);
  }
  template <class T>
  void store(const Wide& x, T* p) const {
    x.store(p);
  }
  Wide keep(const Wide& x, float) const { return x; }
};

struct Rest {
  int n;
  template <class T>
  Wide load(const T* p) const {
    return Wide::load(p, n);
  }
  template <class T>
  void store(const Wide& x, T* p) const {
    x.store(p, n);
  }
  /// x, with `fill` past the row's end.
  Wide keep(const Wide& x, float fill) const {
    float lane[Wide::kCount];
    x.store(lane);
    for (int i = n; i < Wide::kCount; ++i) {
      lane[i] = fill;
    }
    return Wide::load(lane);
  }
};

template <class F>
inline void each(int64_t columns, const F& f) {
  int64_t j = 0;
  for (; j + Wide::kCount <= columns; j += Wide::kCount) {
    f(j, Whole());
  }
  if (j < columns) {
    f(j, Rest{static_cast<int>(columns - j)});
  }
}

template <class C>
inline void add_to(float* sum, const Wide& x, const C& at) {
  at.store(at.load(sum) + x, sum);
}

/// Calls f<float> or f<Bf16>.
template <class F>
inline void with_element(Element element, const F& f) {
  if (element == Element::bf16) {
    f(Bf16());
  } else {
    f(float());
  }
}

// ---- GELU ----

struct TanhGelu {
  // gelu(x) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
  static constexpr float kScale = -2 * 0.797884561f;
  static constexpr float kCube = -2 * 0.797884561f * 0.044715f;

  static Wide exponential(const Wide& x, const Wide& square) {
    return exp(x * fma(square, Wide::all(kCube), Wide::all(kScale)));
  }
  static Wide value(const Wide& x) { return x / (Wide::all(1) + exponential(x, x * x)); }
  static Wide derivative(const Wide& x) {
    const Wide square = x * x;
    const Wide e = exponential(x, square);
    const Wide s = Wide::all(1) / (Wide::all(1) + e);
    const Wide near = max(Wide::all(-30), min(Wide::all(30), x)); // past it e s s is 0: avoids 0 * infinity
    const Wide slope = near * fma(near * near, Wide::all(-3 * kCube), Wide::all(-kScale));
    return fma(slope, e * s * s, s);
  }
};

struct ErfGelu {
  // gelu(x) = x Phi(x), Phi(-|x|) = erfc(|x| / sqrt 2) / 2
  static Wide distribution(const Wide& x, const Wide& density) {
    const Wide z = min(Wide::all(12), magnitude(x) * Wide::all(0.707106781f));
    const Wide tail = density * scaled_erfc(z) * Wide::all(0.5f);
    return if_negative(x, tail, Wide::all(1) - tail);
  }
  static Wide density(const Wide& x) { return exp(x * x * Wide::all(-0.5f)); }
  static Wide value(const Wide& x) { return x * distribution(x, density(x)); }
  static Wide derivative(const Wide& x) {
    const Wide d = density(x);
    return fma(x * Wide::all(0.398942280f), d, distribution(x, d));
  }
};

template <class T, class Form>
void gelu_rows(const GeluArgs& args, int64_t begin, int64_t end) {
  const auto* const bias = static_cast<const float*>(args.bias);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.columns;
    T* y = static_cast<T*>(args.y) + row * args.columns;
    each(args.columns, [&](int64_t j, const auto& at) {
      Wide v = at.load(x + j);
      if (bias != nullptr) {
        v = v + at.load(bias + j);
      }
      at.store(Form::value(v), y + j);
    });
  }
}

template <class T, class Form>
void gelu_backward_rows(const GeluArgs& args, int64_t begin, int64_t end) {
  const auto* const bias = static_cast<const float*>(args.bias);
  auto* const dbias = static_cast<float*>(args.dbias);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.columns;
    const T* dy = static_cast<const T*>(args.dy) + row * args.columns;
    T* dx = static_cast<T*>(args.dx) + row * args.columns;
    each(args.columns, [&](int64_t j, const auto& at) {
      Wide v = at.load(x + j);
      if (bias != nullptr) {
        v = v + at.load(bias + j);
      }
      const Wide d = at.load(dy + j) * Form::derivative(v);
      at.store(d, dx + j);
      if (dbias != nullptr) {
        add_to(dbias + j, d, at);
      }
    });
  }
}

void gelu(const GeluArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) {
    args.form == Gelu::tanh ? gelu_rows<decltype(t), TanhGelu>(args, begin, end)
                            : gelu_rows<decltype(t), ErfGelu>(args, begin, end);
  });
}

void gelu_backward(const GeluArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) {
    args.form == Gelu::tanh ? gelu_backward_rows<decltype(t), TanhGelu>(args, begin, end)
                            : gelu_backward_rows<decltype(t), ErfGelu>(args, begin, end);
  });
}

// ---- LayerNorm ----

template <class T>
void layer_norm_rows(const LayerNormArgs& args, int64_t begin, int64_t end) {
  const auto* const bias = static_cast<const float*>(args.bias);
  const auto* const weight = static_cast<const float*>(args.weight);
  const auto* const shift = static_cast<const float*>(args.shift);
  const int64_t n = args.columns;
  const float share = 1.0f / static_cast<float>(n);
  for (int64_t row = begin; row < end; ++row) {
    const T* h = static_cast<const T*>(args.x) + row * n;
    Wide total = Wide::zero();
    if (args.residual != nullptr) {
      const T* x = h;
      const T* residual = static_cast<const T*>(args.residual) + row * n;
      T* out = static_cast<T*>(args.h) + row * n;
      each(n, [&](int64_t j, const auto& at) {
        Wide v = at.load(x + j);
        if (bias != nullptr) {
          v = v + at.load(bias + j);
        }
        at.store(v + at.load(residual + j), out + j);
        total = total + at.load(out + j); // as backward will read it
      });
      h = out;
    } else {
      each(n, [&](int64_t j, const auto& at) { total = total + at.load(h + j); });
    }
    const float mean = sum(total) * share;
    const Wide center = Wide::all(mean);
    Wide squares = Wide::zero();
    each(n, [&](int64_t j, const auto& at) {
      const Wide d = at.keep(at.load(h + j) - center, 0);
      squares = fma(d, d, squares);
    });
    const float rstd = 1.0f / __builtin_sqrtf(sum(squares) * share + args.eps);
    const Wide scale = Wide::all(rstd);
    T* y = static_cast<T*>(args.y) + row * n;
    each(n, [&](int64_t j, const auto& at) {
      at.store(fma((at.load(h + j) - center) * scale, at.load(weight + j), at.load(shift + j)), y + j);
    });
    args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
}

template <class T>
void layer_norm_backward_rows(const LayerNormArgs& args, int64_t begin, int64_t end) {
  const auto* const weight = static_cast<const float*>(args.weight);
  auto* const dweight = static_cast<float*>(args.dweight);
  auto* const dshift = static_cast<float*>(args.dshift);
  auto* const dbias = static_cast<float*>(args.dbias);
  const int64_t n = args.columns;
  const float share = 1.0f / static_cast<float>(n);
  for (int64_t row = begin; row < end; ++row) {
    const T* h = static_cast<const T*>(args.h) + row * n;
    const T* dy = static_cast<const T*>(args.dy) + row * n;
    const T* dh_in = args.dh_in != nullptr ? static_cast<const T*>(args.dh_in) + row * n : nullptr;
    T* dh = static_cast<T*>(args.dh) + row * n;
    const Wide center = Wide::all(args.mean[row]);
    const Wide scale = Wide::all(args.rstd[row]);
    Wide sum_g = Wide::zero();
    Wide sum_gx = Wide::zero();
    each(n, [&](int64_t j, const auto& at) {
      const Wide d = at.load(dy + j);
      const Wide normal = (at.load(h + j) - center) * scale;
      const Wide g = d * at.load(weight + j); // 0 past the end
      sum_g = sum_g + g;
      sum_gx = fma(g, normal, sum_gx);
      if (dweight != nullptr) {
        add_to(dweight + j, d * normal, at);
      }
      if (dshift != nullptr) {
        add_to(dshift + j, d, at);
      }
    });
    const Wide mean_g = Wide::all(sum(sum_g) * share);
    const Wide mean_gx = Wide::all(sum(sum_gx) * share);
    each(n, [&](int64_t j, const auto& at) {
      const Wide normal = (at.load(h + j) - center) * scale;
      const Wide g = at.load(dy + j) * at.load(weight + j);
      Wide d = scale * fnma(normal, mean_gx, g - mean_g);
      if (dh_in != nullptr) {
        d = d + at.load(dh_in + j);
      }
      at.store(d, dh + j);
      if (dbias != nullptr) {
        add_to(dbias + j, d, at);
      }
    });
  }
}

void layer_norm(const LayerNormArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) { layer_norm_rows<decltype(t)>(args, begin, end); });
}

void layer_norm_backward(const LayerNormArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) { layer_norm_backward_rows<decltype(t)>(args, begin, end); });
}

// ---- cross-entropy ----

template <class T>
void cross_entropy_rows(const CrossEntropyArgs& args, int64_t begin, int64_t end) {
  constexpr float kLowest = -__builtin_inff();
  constexpr int kSums = 4; // hides the latency of additions
  const int64_t n = args.columns;
  const int64_t whole = n - n % (kSums * Wide::kCount);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.logits) + row * args.to_next_row();
    Wide top[kSums];
    for (Wide& w : top) {
      w = Wide::all(kLowest);
    }
    for (int64_t j = 0; j < whole; j += kSums * Wide::kCount) {
#pragma GCC unroll 4
      for (int k = 0; k < kSums; ++k) {
        top[k] = max(top[k], Wide::load(x + j + k * Wide::kCount));
      }
    }
    each(n - whole, [&](int64_t j, const auto& at) { top[0] = max(top[0], at.keep(at.load(x + whole + j), kLowest)); });
    const float highest = largest(max(max(top[0], top[1]), max(top[2], top[3])));
    const Wide shift = Wide::all(highest);
    Wide sums[kSums];
    for (Wide& w : sums) {
      w = Wide::zero();
    }
    for (int64_t j = 0; j < whole; j += kSums * Wide::kCount) {
#pragma GCC unroll 4
      for (int k = 0; k < kSums; ++k) {
        sums[k] = sums[k] + exp(Wide::load(x + j + k * Wide::kCount) - shift);
      }
    }
    each(n - whole,
         [&](int64_t j, const auto& at) { sums[0] = sums[0] + at.keep(exp(at.load(x + whole + j) - shift), 0); });
    const float lse = highest + __builtin_logf(sum((sums[0] + sums[1]) + (sums[2] + sums[3])));
    args.lse[row] = lse;
    const int64_t target = args.target[row];
    args.loss[row] = target == args.ignore ? 0.0f : target < 0 ? lse : lse - sum(Wide::load(x + target, 1));
  }
}

template <class T>
void cross_entropy_backward_rows(const CrossEntropyArgs& args, int64_t begin, int64_t end) {
  const Wide scale = Wide::all(args.scale);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.logits) + row * args.to_next_row();
    T* dx = static_cast<T*>(args.dlogits) + row * args.to_next_row();
    const int64_t target = args.target[row];
    if (target == args.ignore) {
      each(args.columns, [&](int64_t j, const auto& at) { at.store(Wide::zero(), dx + j); });
      continue;
    }
    const Wide shift = Wide::all(args.lse[row]);
    const Wide hit =
        target < 0 ? Wide::zero()
                   : (exp(Wide::load(x + target, 1) - shift) - Wide::all(1)) * scale; // before the row is overwritten
    each(args.columns, [&](int64_t j, const auto& at) { at.store(exp(at.load(x + j) - shift) * scale, dx + j); });
    if (target >= 0) {
      hit.store(dx + target, 1);
    }
  }
}

void cross_entropy(const CrossEntropyArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) { cross_entropy_rows<decltype(t)>(args, begin, end); });
}

void cross_entropy_backward(const CrossEntropyArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) { cross_entropy_backward_rows<decltype(t)>(args, begin, end); });
}

// ---- sums and additions ----

void column_sum(const ColumnSumArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) {
    using T = decltype(t);
    auto* const sum = static_cast<float*>(args.sum);
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x) + row * args.columns;
      each(args.columns, [&](int64_t j, const auto& at) { add_to(sum + j, at.load(x + j), at); });
    }
  });
}

void add_bias(const AddBiasArgs& args, int64_t begin, int64_t end) {
  with_element(args.element, [&](auto t) {
    using T = decltype(t);
    const auto* const bias = static_cast<const float*>(args.bias);
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x) + row * args.columns;
      const T* residual = static_cast<const T*>(args.residual) + row * args.columns;
      T* out = static_cast<T*>(args.out) + row * args.columns;
      each(args.columns, [&](int64_t j, const auto& at) {
        at.store(at.load(x + j) + at.load(bias + j) + at.load(residual + j), out + j);
      });
    }
  });
}

} // namespace
} // namespace trireme::kernels
