#include <trireme/data/token_scan.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace trireme::data {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are read without conversion");

template <typename Token>
int64_t largest(std::span<const unsigned char> bytes) {
  constexpr size_t kLanes = 64; // a fixed number of steps, which the compiler vectorizes
  std::array<Token, kLanes> most{};
  std::array<Token, kLanes> part;
  for (; bytes.size() >= sizeof(part); bytes = bytes.subspan(sizeof(part))) {
    std::memcpy(part.data(), bytes.data(), sizeof(part));
    for (size_t i = 0; i < kLanes; ++i) {
      most[i] = std::max(most[i], part[i]);
    }
  }
  part = {};
  std::memcpy(part.data(), bytes.data(), bytes.size() / sizeof(Token) * sizeof(Token));
  return std::max(*std::max_element(most.begin(), most.end()), *std::max_element(part.begin(), part.end()));
}

} // namespace

int64_t largest_token(std::span<const unsigned char> bytes, int64_t token_bytes) {
  return token_bytes == 2 ? largest<uint16_t>(bytes) : largest<uint32_t>(bytes);
}

int64_t suggested_token_bytes(std::span<const unsigned char> beginning) {
  constexpr int kSmall = 16;
  constexpr int kEnough = 32;
  const size_t values = beginning.size() / 8 * 4;
  const auto value = [&](size_t i) { return beginning[2 * i] | beginning[2 * i + 1] << 8; };
  std::array<int, 4> most{}; // of the values at each place modulo 4
  for (size_t i = 0; i < values; ++i) {
    most[i % 4] = std::max(most[i % 4], value(i));
  }
  for (const size_t width : {8, 4}) {
    int upper = 0;
    for (size_t place = 0; place < 4; ++place) {
      upper = place % (width / 2) == 0 ? upper : std::max(upper, most[place]);
    }
    int larger = 0;
    for (size_t i = 0; i < values && larger < kEnough; i += width / 2) {
      larger += value(i) > upper ? 1 : 0;
    }
    if (upper < kSmall && larger >= kEnough) {
      return static_cast<int64_t>(width);
    }
  }
  return 2;
}

} // namespace trireme::data
