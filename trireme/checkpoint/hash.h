#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

struct XXH3_state_s;

namespace trireme::checkpoint {

/// Computes XXH3-128 piece by piece. Detects accidental damage, not forgery.
/// Cost: 10 GB/s and more from cache.
/// Source: github.com/Cyan4973/xxHash.
class Hasher {
 public:
  Hasher();
  void update(const void* data, size_t bytes);
  /// 32 hexadecimal digits, the canonical (big-endian) form that `xxhsum -H2` prints.
  std::string hex() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

std::string hash_of(const void* data, size_t bytes);

/// Reads the file once. Errors: InputError when it cannot be read.
std::string hash_of_file(const std::filesystem::path& file);

} // namespace trireme::checkpoint
