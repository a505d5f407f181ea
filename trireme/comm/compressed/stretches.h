#pragma once

#include <trireme/comm/compressed/compressor.h>

#include <ATen/ATen.h>

namespace trireme::comm {

/// A compressor with loops of its own on the CPU, and ATen's operators elsewhere.
class TwofoldCompressor : public Compressor {
 public:
  void compress(const at::Tensor& x, std::span<const Stretch> stretches, const at::Tensor& message) const final {
    x.is_cpu() ? compress_here(x, stretches, message) : compress_there(x, stretches, message);
  }
  void add(const at::Tensor& message, std::span<const Stretch> stretches, const at::Tensor& sum) const final {
    sum.is_cpu() ? add_here(message, stretches, sum) : add_there(message, stretches, sum);
  }

 private:
  virtual void compress_here(const at::Tensor& x, std::span<const Stretch> stretches, const at::Tensor& message) const = 0;
  virtual void compress_there(const at::Tensor& x, std::span<const Stretch> stretches, const at::Tensor& message) const = 0;
  virtual void add_here(const at::Tensor& message, std::span<const Stretch> stretches, const at::Tensor& sum) const = 0;
  virtual void add_there(const at::Tensor& message, std::span<const Stretch> stretches, const at::Tensor& sum) const = 0;
};

/// Neighbours of one length, [first, last) of the stretches: operators see them as the rows of a matrix.
struct Rows {
  size_t first = 0;
  size_t last = 0;
  int64_t begin = 0;
  int64_t length = 0;

  int64_t count() const {
    return static_cast<int64_t>(last - first);
  }
  /// Their elements of `values`, [count(), length].
  at::Tensor of(const at::Tensor& values) const {
    return values.slice(0, begin, begin + count() * length).view({count(), length});
  }
};

/// Calls f(Rows) for all stretches, in order.
template <class F>
void for_each_rows(std::span<const Stretch> stretches, const F& f) {
  for (size_t first = 0, last = 0; first < stretches.size(); first = last) {
    last = first + 1;
    while (last < stretches.size() && stretches[last].begin == stretches[last - 1].end && stretches[last].count() == stretches[first].count()) {
      ++last;
    }
    f(Rows{first, last, stretches[first].begin, stretches[first].count()});
  }
}

/// The next `count` numbers of a message from byte `at` on, as [rows, count / rows]; moves `at` behind them.
inline at::Tensor take(const at::Tensor& message, int64_t& at, int64_t rows, int64_t count, at::ScalarType type) {
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  const at::Tensor taken = message.slice(0, at, at + bytes).view(type).view({rows, count / rows});
  at += bytes;
  return taken;
}

} // namespace trireme::comm
