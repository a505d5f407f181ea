#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::store {

/// The secret that only the ranks of one job know: 32 random bytes, or none.
///
/// It never appears in an argument, a log or the environment: the environment only gives its location. The destructor
/// wipes the bytes.
class Secret {
 public:
  static constexpr size_t kBytes = 32;

  /// No secret: every client that speaks the protocol is accepted.
  Secret() = default;
  /// Takes 32 bytes. Errors: InputError for any other number.
  explicit Secret(std::string_view bytes);
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  /// Makes a new secret from the kernel's random numbers.
  static Secret random();

  /// Parses the output of hex(), with or without a line end; nullopt for anything else.
  static std::optional<Secret> from_hex(std::string_view digits);

  /// Reads the descriptor in TRIREME_SECRET_FD (see memory_file()) or the file in TRIREME_SECRET_FILE; returns an empty
  /// secret if neither is set. Either holds 32 bytes, or 64 hexadecimal digits and optionally a line end. Errors:
  /// InputError if the file belongs to another user, others may read it (it needs mode 0600), or it has another size.
  static Secret from_environment();

  /// Opens an unnamed memory file with the bytes, sealed against changes; programs started by this process inherit it.
  /// The caller closes it. Errors: Error if the system has none.
  int memory_file() const;

  bool empty() const { return empty_; }
  /// 32 bytes, or none.
  std::string_view bytes() const { return {bytes_.data(), empty_ ? 0 : kBytes}; }
  /// 64 hexadecimal digits, or none. Only for channels that nobody else can read.
  std::string hex() const;

 private:
  std::array<char, kBytes> bytes_{};
  bool empty_ = true;
};

/// How a client gets the secret: directly, or by a search on the host after the server's greeting.
class SecretSource {
 public:
  SecretSource(Secret secret) : find_([secret = std::move(secret)](int) { return secret; }) {}
  /// `find` receives the connected socket.
  explicit SecretSource(std::function<Secret(int socket)> find) : find_(std::move(find)) {}
  Secret operator()(int socket) const { return find_(socket); }

 private:
  std::function<Secret(int)> find_;
};

/// Fills the buffer with secure random bytes from the kernel. Errors: Error if it has none.
void fill_random(void* buffer, size_t bytes);

} // namespace trireme::store
