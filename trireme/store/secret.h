#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::store {

/// What the ranks of one job know and nobody else does: 32 random bytes, or nothing.
///
/// It never appears in an argument, a log or the environment: the environment only says where it is.
/// The bytes are wiped when the object goes.
class Secret {
 public:
  static constexpr size_t kBytes = 32;

  /// No secret. Whoever speaks the protocol is let in.
  Secret() = default;
  /// Takes 32 bytes as they are. Errors: InputError for any other number of bytes.
  explicit Secret(std::string_view bytes);
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  /// Draws a new one from the kernel.
  static Secret random();

  /// Reads the descriptor in TRIREME_SECRET_FD (see memory_file()) or the file in TRIREME_SECRET_FILE;
  /// an empty secret when neither is set. Either holds 32 bytes, or 64 hexadecimal digits and perhaps a line end.
  /// Errors: InputError when the file is not the user's own or others may read it (mode 0600 is asked for),
  /// or when it has another size.
  static Secret from_environment();

  /// Opens a nameless memory file with the bytes, sealed against change, that programs started from here inherit.
  /// The caller closes it. Errors: Error when the system has none.
  int memory_file() const;

  bool empty() const {
    return empty_;
  }
  /// 32 bytes, or none.
  std::string_view bytes() const {
    return {bytes_.data(), empty_ ? 0 : kBytes};
  }

 private:
  std::array<char, kBytes> bytes_{};
  bool empty_ = true;
};

/// Fills the buffer with bytes from the kernel that nobody can guess. Errors: Error when it has none.
void fill_random(void* buffer, size_t bytes);

} // namespace trireme::store
