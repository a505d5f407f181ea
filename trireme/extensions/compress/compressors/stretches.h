#pragma once

#include <trireme/extensions/compress/compressors/compressor.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace trireme::comm {

/// Calls f(number) for each of `count` stretches, on all threads.
template <class F>
void for_each_stretch(size_t count, const F& f) {
  constexpr int64_t kGrain = 16; // fewest stretches per thread
  at::parallel_for(0, static_cast<int64_t>(count), kGrain, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      f(static_cast<size_t>(s));
    }
  });
}

/// A compressor with its own loops on the CPU, and ATen's operators on other devices.
class TwofoldCompressor : public Compressor, private StretchLoops {
 public:
  void compress(const at::Tensor& x, std::span<const Stretch> stretches, const at::Tensor& message) const final {
    if (!x.is_cpu()) {
      compress_there(x, stretches, message);
      return;
    }
    const std::vector<Place> place = places(stretches);
    auto* const values = x.mutable_data_ptr<float>();
    auto* const bytes = message.mutable_data_ptr<uint8_t>();
    for_each_stretch(stretches.size(), [&](size_t s) {
      compress_one(values + stretches[s].begin, stretches[s].count(), place[s], bytes);
    });
  }
  void add(const at::Tensor& message, std::span<const Stretch> stretches, const at::Tensor& sum) const final {
    if (!sum.is_cpu()) {
      add_there(message, stretches, sum);
      return;
    }
    const std::vector<Place> place = places(stretches);
    const auto* const bytes = message.const_data_ptr<uint8_t>();
    auto* const values = sum.mutable_data_ptr<float>();
    for_each_stretch(stretches.size(),
                     [&](size_t s) { add_one(bytes, place[s], stretches[s].count(), values + stretches[s].begin); });
  }
  const StretchLoops* loops() const final { return this; }

 protected:
  using StretchLoops::Place;

 private:
  virtual void compress_there(const at::Tensor& x, std::span<const Stretch> stretches,
                              const at::Tensor& message) const = 0;
  virtual void add_there(const at::Tensor& message, std::span<const Stretch> stretches,
                         const at::Tensor& sum) const = 0;
};

/// Adjacent stretches of one length, [first, last): operators see them as rows of a matrix.
struct Rows {
  size_t first = 0;
  size_t last = 0;
  int64_t begin = 0;
  int64_t length = 0;

  int64_t count() const { return static_cast<int64_t>(last - first); }
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
    while (last < stretches.size() && stretches[last].begin == stretches[last - 1].end &&
           stretches[last].count() == stretches[first].count()) {
      ++last;
    }
    f(Rows{first, last, stretches[first].begin, stretches[first].count()});
  }
}

/// The next `count` numbers of a message from byte `at` on, as [rows, count / rows]; advances `at`.
inline at::Tensor take(const at::Tensor& message, int64_t& at, int64_t rows, int64_t count, at::ScalarType type) {
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  const at::Tensor taken = message.slice(0, at, at + bytes).view(type).view({rows, count / rows});
  at += bytes;
  return taken;
}

} // namespace trireme::comm
