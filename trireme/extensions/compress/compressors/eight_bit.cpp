#include <trireme/extensions/compress/compressors/stretches.h>
#include <trireme/kernels/kernels.h>

#include <array>

namespace trireme::comm {
namespace {

static_assert(kScaledElements == kernels::kStateBlock);

// The message: the scales of all stretches, then their codes.
class EightBitCompressor final : public TwofoldCompressor {
 public:
  const char* name() const override { return "8-bit"; }
  int64_t message_bytes(std::span<const Stretch> stretches) const override {
    int64_t bytes = first_code(stretches);
    for (const Stretch& stretch : stretches) {
      bytes += stretch.count();
    }
    return bytes;
  }

 private:
  static int64_t first_code(std::span<const Stretch> stretches) {
    int64_t scales = 0;
    for (const Stretch& stretch : stretches) {
      scales += scales_of(stretch.count());
    }
    return scales * static_cast<int64_t>(sizeof(float));
  }

  std::vector<Place> places(std::span<const Stretch> stretches) const override {
    std::vector<Place> found;
    found.reserve(stretches.size());
    Place next = {0, first_code(stretches)};
    for (const Stretch& stretch : stretches) {
      found.push_back(next);
      next = {next.scales + scales_of(stretch.count()) * static_cast<int64_t>(sizeof(float)),
              next.numbers + stretch.count()};
    }
    return found;
  }
  static kernels::StateArray codes_at(const Place& place, uint8_t* message) {
    return {message + place.numbers, kernels::Element::u8, reinterpret_cast<float*>(message + place.scales)};
  }

  // values[i] = values[i] + sign * decoded[i]
  static void add_decoded(const kernels::StateArray& codes, int64_t count, float sign, float* values) {
    alignas(64) std::array<float, kScaledElements> decoded;
    for (int64_t begin = 0; begin < count; begin += kScaledElements) {
      const int64_t end = std::min(begin + kScaledElements, count);
      kernels::active_kernels().decode_state(codes, true, begin, end, decoded.data());
      for (int64_t i = begin; i < end; ++i) {
        values[i] += sign * decoded[static_cast<size_t>(i - begin)];
      }
    }
  }
  void compress_one(float* x, int64_t n, const Place& place, uint8_t* message) const override {
    const kernels::StateArray codes = codes_at(place, message);
    kernels::active_kernels().encode_state(codes, true, 0, n, x, kernels::kToNearest);
    add_decoded(codes, n, -1, x);
  }
  void add_one(const uint8_t* message, const Place& place, int64_t n, float* sum) const override {
    add_decoded(codes_at(place, const_cast<uint8_t*>(message)), n, 1, sum); // only reads it
  }

  // The values of codes 0 to 255 at scale 1, on the CPU.
  static at::Tensor levels() {
    at::Tensor codes = at::arange(256, at::kByte);
    float one = 1;
    at::Tensor values = at::empty({256}, at::kFloat);
    kernels::active_kernels().decode_state({codes.mutable_data_ptr(), kernels::Element::u8, &one}, true, 0,
                                           kScaledElements, values.mutable_data_ptr<float>());
    return values;
  }
  // [rows, length] as [rows, scales, kScaledElements], padded with zeros.
  static at::Tensor padded(const at::Tensor& rows) {
    const int64_t scales = scales_of(rows.size(1));
    return at::constant_pad_nd(rows, {0, scales * kScaledElements - rows.size(1)})
        .view({rows.size(0), scales, kScaledElements});
  }
  static at::Tensor decoded(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& level) {
    return padded(level.index({codes.to(at::kLong)}))
        .mul(scales.unsqueeze(2))
        .view({codes.size(0), -1})
        .slice(1, 0, codes.size(1));
  }
  void compress_there(const at::Tensor& x, std::span<const Stretch> stretches,
                      const at::Tensor& message) const override {
    const at::Tensor all = levels();
    const at::Tensor middles = all.slice(0, 0, 127).add(all.slice(0, 1, 128)).div(2).to(x.device());
    const at::Tensor level = all.to(x.device());
    int64_t at_scale = 0;
    int64_t at_code = first_code(stretches);
    for_each_rows(stretches, [&](const Rows& rows) {
      at::Tensor values = rows.of(x);
      const at::Tensor blocks = padded(values);
      const at::Tensor scale = blocks.abs().amax({2});
      const at::Tensor unit = blocks.div(scale.clamp_min(std::numeric_limits<float>::min()).unsqueeze(2));
      const at::Tensor magnitude = at::bucketize(unit.abs(), middles).to(at::kByte);
      const at::Tensor code =
          magnitude.add(unit.lt(0).to(at::kByte).mul(128)).view({rows.count(), -1}).slice(1, 0, rows.length);
      take(message, at_scale, rows.count(), scale.numel(), at::kFloat).copy_(scale);
      take(message, at_code, rows.count(), rows.count() * rows.length, at::kByte).copy_(code);
      values.sub_(decoded(code, scale, level));
    });
  }
  void add_there(const at::Tensor& message, std::span<const Stretch> stretches, const at::Tensor& sum) const override {
    const at::Tensor level = levels().to(sum.device());
    int64_t at_scale = 0;
    int64_t at_code = first_code(stretches);
    for_each_rows(stretches, [&](const Rows& rows) {
      const at::Tensor scale = take(message, at_scale, rows.count(), rows.count() * scales_of(rows.length), at::kFloat);
      rows.of(sum).add_(
          decoded(take(message, at_code, rows.count(), rows.count() * rows.length, at::kByte), scale, level));
    });
  }
};

} // namespace

std::shared_ptr<const Compressor> eight_bit_compressor() {
  return std::make_shared<EightBitCompressor>();
}

} // namespace trireme::comm
