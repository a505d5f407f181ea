#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

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

  /// What hex() gives, perhaps with a line end; nullopt for anything else.
  static std::optional<Secret> from_hex(std::string_view digits);

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
  /// 64 hexadecimal digits, or none. Only for what nobody else can read.
  std::string hex() const;

 private:
  std::array<char, kBytes> bytes_{};
  bool empty_ = true;
};

/// Where a client gets the secret from: it has it, or looks for it on the host once the server has greeted.
class SecretSource {
 public:
  SecretSource(Secret secret) : find_([secret = std::move(secret)](int) { return secret; }) {}
  /// `find` gets the connected socket.
  explicit SecretSource(std::function<Secret(int socket)> find) : find_(std::move(find)) {}
  Secret operator()(int socket) const {
    return find_(socket);
  }

 private:
  std::function<Secret(int)> find_;
};

/// Fills the buffer with bytes from the kernel that nobody can guess. Errors: Error when it has none.
void fill_random(void* buffer, size_t bytes);

} // namespace trireme::store
