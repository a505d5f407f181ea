#include <trireme/fused/floats.h>
#include <trireme/fused/fused.h>
#include <trireme/fused/helper_threads.h>
#include <trireme/fused/rows.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace trireme::fused {
namespace {

/// In memory so that heads follow each other, and features too.
at::Tensor with_rows(const at::Tensor& x, at::ScalarType type) {
  const at::Tensor same = with_type(x, type);
  return same.stride(3) == 1 ? same : same.contiguous();
}

/// [positions, D / 2] in fp32, or undefined.
at::Tensor as_angles(const at::Tensor& table) {
  return table.defined() ? with_type(table, at::kFloat).contiguous() : table;
}

std::byte* at_offset(const at::Tensor& x, int64_t elements) {
  return static_cast<std::byte*>(const_cast<void*>(x.const_data_ptr())) +
         elements * static_cast<int64_t>(x.element_size());
}

/// Turns the heads of sample b of x [B, heads, 1, D] by the angles of `position`, to y's heads at `row`.
void turn(const at::Tensor& x, const at::Tensor& y, int64_t b, int64_t position, int64_t row, const at::Tensor& cos,
          const at::Tensor& sin) {
  kernels::RotaryArgs args;
  args.x = at_offset(x, b * x.stride(0));
  args.x_at = strides_of(x);
  args.y = at_offset(y, b * y.stride(0) + row * y.stride(2));
  args.y_at = strides_of(y);
  args.cos = cos.const_data_ptr<float>() + position * cos.size(1);
  args.sin = sin.const_data_ptr<float>() + position * sin.size(1);
  args.tokens = 1;
  args.heads = x.size(1);
  args.head_size = x.size(3);
  args.element = element_of(x);
  kernels::active_fused_kernels().rotary(args, 0, 1);
}

/// Copies the heads of sample b of x [B, heads, 1, D] to y's at `row`.
void copy(const at::Tensor& x, const at::Tensor& y, int64_t b, int64_t row) {
  for (int64_t head = 0; head < x.size(1); ++head) {
    std::memcpy(at_offset(y, b * y.stride(0) + head * y.stride(1) + row * y.stride(2)),
                at_offset(x, b * x.stride(0) + head * x.stride(1)), static_cast<size_t>(x.size(3)) * x.element_size());
  }
}

void check_kept(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const KeptKeys& kept,
                const at::Tensor& cos, const at::Tensor& sin) {
  const auto refuse = [](const std::string& what) { throw InputError("fused", concat("attend_to_kept: ", what)); };
  const int64_t capacity = kept.k.dim() == 4 ? kept.k.size(2) : 0;
  if (q.dim() != 4 || k.dim() != 4 || kept.k.dim() != 4 || q.size(2) != 1 || k.size(2) != 1 || k.sizes() != v.sizes() ||
      kept.k.sizes() != kept.v.sizes() || kept.k.strides() != kept.v.strides() || q.size(0) != k.size(0) ||
      k.size(0) != kept.k.size(0) || k.size(1) != kept.k.size(1) || k.size(1) < 1 || q.size(1) % k.size(1) != 0 ||
      q.size(3) != k.size(3) || k.size(3) != kept.k.size(3) || kept.k.stride(3) != 1) {
    refuse(concat("q must be [B, A, 1, D], k and v [B, K, 1, D], and what is kept [B, K, capacity, D]; got ", q.sizes(),
                  ", ", k.sizes(), ", ", v.sizes(), ", ", kept.k.sizes(), " and ", kept.v.sizes(), '.'));
  }
  if (static_cast<int64_t>(kept.lengths.size()) != q.size(0)) {
    refuse(concat("got ", kept.lengths.size(), " lengths for ", q.size(0), " texts."));
  }
  const int64_t positions = cos.defined() ? cos.size(0) : capacity;
  for (const int64_t length : kept.lengths) {
    if (length < 1 || length > capacity || length > positions) {
      refuse(concat("a text has ", length, " tokens, room for ", capacity, " and angles for ", positions, '.'));
    }
  }
  if (cos.defined() && (cos.dim() != 2 || cos.sizes() != sin.sizes() || 2 * cos.size(1) != q.size(3))) {
    refuse(
        concat("cos and sin must be [positions, ", q.size(3), " / 2]; got ", cos.sizes(), " and ", sin.sizes(), '.'));
  }
}

/// Calls f(begin, end) for ranges of rows on this thread and helpers.
template <class F>
void shared_rows(int64_t rows, int64_t columns, const F& f) {
  constexpr int64_t kElements = 16384, kMostRanges = 4096;
  const int64_t count = std::max({int64_t{1}, kElements / std::max<int64_t>(columns, 1), rows / kMostRanges});
  helper_threads().run((rows + count - 1) / count, at::get_num_threads(),
                       [&](int64_t part) { f(part * count, std::min((part + 1) * count, rows)); });
}

} // namespace

bool has_kept_attention(const at::Tensor& q, const at::Tensor& kept_k) {
  return c10::InferenceMode::is_enabled() && usable({q, kept_k});
}

at::Tensor attend_to_kept(const at::Tensor& any_q, const at::Tensor& any_k, const at::Tensor& any_v,
                          const KeptKeys& kept, const at::Tensor& any_cos, const at::Tensor& any_sin, int64_t window) {
  check_kept(any_q, any_k, any_v, kept, any_cos, any_sin);
  const at::ScalarType type = kept.k.scalar_type();
  const at::Tensor q_in = with_rows(any_q, type), k_in = with_rows(any_k, type), v_in = with_rows(any_v, type);
  const at::Tensor cos = as_angles(any_cos), sin = as_angles(any_sin);
  const int64_t B = q_in.size(0), A = q_in.size(1), K = k_in.size(1), D = q_in.size(3);
  const at::Tensor q = cos.defined() ? at::empty({B, A, 1, D}, q_in.options()) : q_in;
  const at::Tensor out = at::empty({B, A, 1, D}, q_in.options());
  int64_t most = 0;
  for (const int64_t length : kept.lengths) {
    most = std::max(most, window > 0 ? std::min(window, length) : length);
  }
  shared_rows(B, (A + 2 * K) * D, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t place = kept.lengths[static_cast<size_t>(b)] - 1;
      if (cos.defined()) {
        turn(q_in, q, b, place, 0, cos, sin);
        turn(k_in, kept.k, b, place, place, cos, sin);
      } else {
        copy(k_in, kept.k, b, place);
      }
      copy(v_in, kept.v, b, place);
    }
  });
  kernels::CachedAttentionArgs args;
  args.q = q.const_data_ptr();
  args.k = kept.k.const_data_ptr();
  args.v = kept.v.const_data_ptr();
  args.q_at = strides_of(q);
  args.k_at = args.v_at = strides_of(kept.k);
  args.lengths = kept.lengths.data();
  args.window = window;
  args.out = out.mutable_data_ptr();
  args.out_at = strides_of(out);
  args.scale = 1.0f / std::sqrt(static_cast<float>(D));
  args.heads = A;
  args.kv_heads = K;
  args.head_size = D;
  args.blocks = (most + args.block - 1) / args.block;
  args.element = element_of(q);
  const AlignedFloats partial = aligned_floats(static_cast<size_t>(B * A * args.blocks * (D + 2)));
  args.partial = partial.get();
  shared_rows(B * K * args.blocks, 2 * std::min(most, args.block) * D,
              [&](int64_t begin, int64_t end) { kernels::active_fused_kernels().cached_attention(args, begin, end); });
  shared_rows(B * A, args.blocks * (D + 2), [&](int64_t begin, int64_t end) {
    kernels::active_fused_kernels().cached_attention_join(args, begin, end);
  });
  return out;
}

} // namespace trireme::fused
