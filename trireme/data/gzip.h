#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace trireme::data {

/// True if the content begins like a gzip file.
bool is_gzip(std::string_view content);

/// Unpacks gzip piece by piece; otherwise as gunzip().
class GunzipStream {
 public:
  /// `source` names the stream in messages.
  explicit GunzipStream(std::string source);
  ~GunzipStream();
  GunzipStream(const GunzipStream&) = delete;
  GunzipStream& operator=(const GunzipStream&) = delete;

  /// Unpacks from `packed`, and removes from it what was used, into `out`. Returns the bytes written; with fewer than
  /// out.size(), all of `packed` was used. Errors: InputError for a damaged stream.
  size_t read(std::string_view& packed, std::span<char> out);
  /// Ends the stream. Errors: InputError if it is cut off.
  void finish() const;

 private:
  class Inflater;
  enum class State { inside, between, padding }; // of members
  void begin_member(std::string_view packed);

  std::string source_;
  std::unique_ptr<Inflater> inflater_;
  State state_ = State::inside;
  uint64_t used_ = 0;
};

/// Unpacks gzip (RFC 1952; concatenates members) until its end or until `at_most` bytes are out. Verifies the checksum
/// at the end; ignores NUL bytes after the last member as padding. Errors: InputError naming `source` for a truncated
/// or damaged stream, and for other data after it.
std::string gunzip(std::string_view content, size_t at_most, const std::string& source);

} // namespace trireme::data
