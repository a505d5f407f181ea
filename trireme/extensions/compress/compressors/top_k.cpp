#include <trireme/extensions/compress/compressors/stretches.h>

#include <trireme/base/error.h>

namespace trireme::comm {
namespace {

static_assert(kLongestStretch <= 32768, "places are int16");

// The message: the values of all stretches, then their positions. ATen's operators on every device.
class TopKCompressor final : public Compressor {
 public:
  explicit TopKCompressor(double share) : share_(share) {
    if (!(share > 0 && share <= 1)) {
      throw InputError("comm", concat("the top-k compressor sends a share of ", share, " of the elements"),
                       "Ask for more than 0 and at most 1.");
    }
  }
  const char* name() const override { return "top-k"; }
  int64_t message_bytes(std::span<const Stretch> stretches) const override {
    return kept(stretches) * (kNumberBytes + kPlaceBytes);
  }
  void compress(const at::Tensor& x, std::span<const Stretch> stretches, const at::Tensor& message) const override {
    int64_t at_value = 0;
    int64_t at_place = kept(stretches) * static_cast<int64_t>(sizeof(float));
    for_each_rows(stretches, [&](const Rows& rows) {
      at::Tensor values = rows.of(x);
      const int64_t count = kept(rows.length);
      const at::Tensor places = std::get<1>(values.abs().topk(count, 1, /*largest=*/true, /*sorted=*/false));
      take(message, at_value, rows.count(), rows.count() * count, at::kFloat).copy_(values.gather(1, places));
      take(message, at_place, rows.count(), rows.count() * count, at::kShort).copy_(places);
      values.scatter_(1, places, 0);
    });
  }
  void add(const at::Tensor& message, std::span<const Stretch> stretches, const at::Tensor& sum) const override {
    int64_t at_value = 0;
    int64_t at_place = kept(stretches) * static_cast<int64_t>(sizeof(float));
    for_each_rows(stretches, [&](const Rows& rows) {
      const int64_t count = rows.count() * kept(rows.length);
      const at::Tensor values = take(message, at_value, rows.count(), count, at::kFloat);
      rows.of(sum).scatter_add_(1, take(message, at_place, rows.count(), count, at::kShort).to(at::kLong), values);
    });
  }

 private:
  int64_t kept(int64_t elements) const { return largest_of(elements, share_); }
  int64_t kept(std::span<const Stretch> stretches) const {
    int64_t count = 0;
    for (const Stretch& stretch : stretches) {
      count += kept(stretch.count());
    }
    return count;
  }

  double share_;
};

} // namespace

std::shared_ptr<const Compressor> top_k_compressor(double share) {
  return std::make_shared<TopKCompressor>(share);
}

} // namespace trireme::comm
