#include <trireme/data/batch.h>

#include <trireme/base/hash.h>

#include <array>
#include <bit>
#include <cstring>

namespace trireme::data {
namespace {

// Four independent chains of FNV-1a's step on 8 bytes, to hide the latency of the multiplication.
uint64_t hash_bytes(const char* bytes, size_t count, uint64_t seed) {
  std::array<uint64_t, 4> lanes = {seed, seed + kMixStep, seed + 2 * kMixStep, seed + 3 * kMixStep};
  const auto step = [](uint64_t lane, uint64_t word) { return std::rotl(lane ^ word, 29) * kMixStep; };
  size_t at = 0;
  for (; at + sizeof(lanes) <= count; at += sizeof(lanes)) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), bytes + at, sizeof(words));
    for (size_t i = 0; i < lanes.size(); ++i) {
      lanes[i] = step(lanes[i], words[i]);
    }
  }
  std::array<uint64_t, 4> rest = {};
  std::memcpy(rest.data(), bytes + at, count - at);
  uint64_t hash = mix64(count + kMixStep);
  for (size_t i = 0; i < lanes.size(); ++i) {
    hash = mix64(hash ^ step(lanes[i], rest[i]));
  }
  return hash;
}

// Never 0 if there is something to compare.
uint32_t hash_of(const std::vector<at::Tensor>& tensors) {
  uint64_t hash = kFnv1aStart;
  bool any = false;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      continue;
    }
    if (!tensor.is_cpu() || tensor.layout() != at::kStrided) {
      return 0;
    }
    any = true;
    hash = fnv1a_step(hash, static_cast<uint64_t>(tensor.scalar_type()));
    for (const int64_t size : tensor.sizes()) {
      hash = fnv1a_step(hash, static_cast<uint64_t>(size));
    }
    const at::Tensor plain = tensor.detach().contiguous();
    hash = hash_bytes(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes(), mix64(hash));
  }
  return any ? static_cast<uint32_t>(mix64(hash)) | 1u : 0;
}

} // namespace

void identify(Batch& batch) {
  if (batch.fingerprint == 0) {
    batch.fingerprint = static_cast<uint64_t>(hash_of(batch.inputs)) << 32 | hash_of(batch.targets);
    batch.identified_by_contents = true;
  }
}

bool are_of_other_samples(uint64_t a, bool a_by_contents, uint64_t b, bool b_by_contents) {
  const auto differ = [](uint64_t one, uint64_t other) { return one != 0 && other != 0 && one != other; };
  if (a_by_contents != b_by_contents) {
    return false;
  }
  return a_by_contents ? differ(a >> 32, b >> 32) || differ(a & 0xffffffffu, b & 0xffffffffu) : differ(a, b);
}

} // namespace trireme::data
