#pragma once

#include <trireme/parallel/pipeline/wire_sizes.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::pipeline {

using Tensors = std::vector<at::Tensor>;

/// A message from one virtual stage to its neighbour for one micro-batch: activations forward, their gradients
/// backward. An undefined tensor means "no gradient".
struct Message {
  int64_t micro_batch = 0;
  Tensors tensors;
  /// For activations: whether each tensor requires a gradient.
  std::vector<bool> requires_grad;
  /// Identifies the samples of the micro-batch; 0: unknown.
  uint64_t fingerprint = 0;
  /// Number of messages that the sender has received on the opposite channel.
  uint64_t received = 0;
  /// Kind of the fingerprint, as in data::Batch.
  bool identified_by_contents = false;
};

/// The bytes of a message: a header of 64 bytes, then the tensors' elements, each from a 64-byte boundary. When
/// types and shapes change, an announcement of kAnnouncementBytes is sent first. Elements on a GPU are sent by its
/// backend; the header (followed by the announcement) by the host's. All members are trivially copyable and
/// little-endian.
struct Header {
  uint32_t magic = kMagic;
  /// 1: an announcement of types and shapes. On the host the message then follows separately, with `next_bytes`.
  uint8_t announces = 0;
  uint8_t identified_by_contents = 0; ///< what kind of fingerprint it is
  uint16_t channel = 0;               ///< the channel's tag, where one stream of headers serves several
  int64_t micro_batch = 0;
  uint64_t sequence = 0;
  uint64_t fingerprint = 0;
  uint64_t requires_grad = 0; ///< bit i: tensor i wants a gradient
  int64_t next_bytes = 0;
  int64_t count = 0;
  uint64_t received = 0; ///< messages that the sender has received on the channel the other way

  static constexpr uint32_t kMagic = 0x54524931;
};
static_assert(sizeof(Header) == 64);

inline constexpr int64_t kMaxTensors = 64;

/// Types and shapes of a message's tensors, and their offsets in it.
struct Layout {
  struct Entry {
    bool defined = false;
    at::ScalarType type = at::kFloat;
    std::vector<int64_t> sizes;
    int64_t offset = 0; ///< in bytes from the start of the message

    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;
  int64_t bytes = kHeaderBytes;

  bool operator==(const Layout&) const = default;

  /// Errors: InputError for more than kMaxTensors tensors.
  static Layout of(const Tensors& tensors);
  /// Writes the entries behind the header of an announcement. Errors: InputError when they do not fit.
  void write(uint8_t* announcement) const;
  static Layout read(const uint8_t* announcement, int64_t count);
  /// The tensors of a message in `buffer` (bytes), as views of it.
  Tensors views(const at::Tensor& buffer) const;
  /// "[4, 128] float32, [4] int64".
  std::string describe() const;
};

/// "[4, 128] float32" for each of the tensors.
std::string describe(const Tensors& tensors);

} // namespace trireme::pipeline
