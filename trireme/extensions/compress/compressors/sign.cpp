#include <trireme/extensions/compress/compressors/stretches.h>
#include <trireme/kernels/kernels.h>

#include <cmath>
#include <cstring>

namespace trireme::comm {
namespace {

// The message: a scale per stretch, then the bits, each stretch from a new byte on.
class SignCompressor final : public TwofoldCompressor {
 public:
  const char* name() const override { return "sign"; }
  int64_t message_bytes(std::span<const Stretch> stretches) const override {
    int64_t bytes = first_bits(stretches);
    for (const Stretch& stretch : stretches) {
      bytes += sign_bytes(stretch.count());
    }
    return bytes;
  }

 private:
  static int64_t first_bits(std::span<const Stretch> stretches) {
    return static_cast<int64_t>(stretches.size() * sizeof(float));
  }

  std::vector<Place> places(std::span<const Stretch> stretches) const override {
    std::vector<Place> found;
    found.reserve(stretches.size());
    Place next = {0, first_bits(stretches)};
    for (const Stretch& stretch : stretches) {
      found.push_back(next);
      next = {next.scales + static_cast<int64_t>(sizeof(float)), next.numbers + sign_bytes(stretch.count())};
    }
    return found;
  }
  void compress_one(float* x, int64_t n, const Place& place, uint8_t* message) const override {
    const kernels::KernelSet& kernels = kernels::active_kernels();
    const double square = kernels.squared_norm(x, kernels::Element::f32, n);
    const auto scale = static_cast<float>(std::sqrt(square / static_cast<double>(n)));
    std::memcpy(message + place.scales, &scale, sizeof scale);
    kernels.pack_signs(x, n, scale, message + place.numbers);
  }
  void add_one(const uint8_t* message, const Place& place, int64_t n, float* sum) const override {
    float scale = 0;
    std::memcpy(&scale, message + place.scales, sizeof scale);
    kernels::active_kernels().add_signs(message + place.numbers, n, scale, sum);
  }

  // 1, 2, 4 to 128.
  static at::Tensor weights(at::Device device) {
    return at::bitwise_left_shift(at::ones({8}, at::TensorOptions(at::kByte).device(device)),
                                  at::arange(8, at::TensorOptions(at::kByte).device(device)));
  }

  void compress_there(const at::Tensor& x, std::span<const Stretch> stretches,
                      const at::Tensor& message) const override {
    const at::Tensor weight = weights(x.device());
    int64_t at_scale = 0;
    int64_t at_bits = first_bits(stretches);
    for_each_rows(stretches, [&](const Rows& rows) {
      at::Tensor values = rows.of(x);
      const at::Tensor scale = values.to(at::kDouble).square().mean({1}, true).sqrt().to(at::kFloat);
      const at::Tensor positive = values.ge(0);
      const int64_t bytes = sign_bytes(rows.length);
      const at::Tensor bits = at::constant_pad_nd(positive.to(at::kByte), {0, 8 * bytes - rows.length})
                                  .view({rows.count(), bytes, 8})
                                  .mul(weight);
      take(message, at_scale, rows.count(), rows.count(), at::kFloat).copy_(scale);
      take(message, at_bits, rows.count(), rows.count() * bytes, at::kByte).copy_(bits.sum({2}, false, at::kByte));
      values.sub_(at::where(positive, scale, scale.neg()));
    });
  }
  void add_there(const at::Tensor& message, std::span<const Stretch> stretches, const at::Tensor& sum) const override {
    const at::Tensor weight = weights(sum.device());
    int64_t at_scale = 0;
    int64_t at_bits = first_bits(stretches);
    for_each_rows(stretches, [&](const Rows& rows) {
      const at::Tensor scale = take(message, at_scale, rows.count(), rows.count(), at::kFloat);
      const at::Tensor bits = take(message, at_bits, rows.count(), rows.count() * sign_bytes(rows.length), at::kByte);
      const at::Tensor positive =
          bits.unsqueeze(2).bitwise_and(weight).ne(0).view({rows.count(), -1}).slice(1, 0, rows.length);
      rows.of(sum).add_(at::where(positive, scale, scale.neg()));
    });
  }
};

} // namespace

std::shared_ptr<const Compressor> sign_compressor() {
  return std::make_shared<SignCompressor>();
}

std::vector<Stretch> cut(std::span<const Stretch> wanted, Stretch range) {
  std::vector<Stretch> stretches;
  for (const Stretch& one : wanted) {
    const int64_t end = std::min(one.end, range.end);
    for (int64_t begin = std::max(one.begin, range.begin); begin < end; begin += kLongestStretch) {
      stretches.push_back({begin - range.begin, std::min(begin + kLongestStretch, end) - range.begin});
    }
  }
  return stretches;
}

} // namespace trireme::comm
