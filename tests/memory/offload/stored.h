#pragma once

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/memory/offload/disk_store.h>

#include <ATen/ATen.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

namespace trireme::offload {

namespace fs = std::filesystem;

/// A store in a folder that ends with it.
struct Stored {
  ScratchFolder scratch{make_scratch_folder("trireme_offload")};
  std::shared_ptr<Traffic> traffic = std::make_shared<Traffic>();
  DiskStore store;

  explicit Stored(DiskOptions options = {.kind = "optimizer states"})
      : store(RankFolder::open(scratch.path, 0), std::move(options), traffic) {}
};

/// Buckets of equal arrays of fp32.
inline std::vector<bucket::StoredArray> equal_arrays(int arrays, int buckets, int64_t numel) {
  return {static_cast<size_t>(arrays),
          bucket::StoredArray{at::kFloat, 0, std::vector<int64_t>(static_cast<size_t>(buckets), numel)}};
}

/// Sets all parts of a bucket to a value.
inline void write(bucket::StateStore& store, int64_t buffer, int64_t bucket, double value) {
  store.use(buffer, bucket, true, [&](const std::vector<at::Tensor>& parts) {
    for (const at::Tensor& part : parts) {
      at::Tensor(part).fill_(value);
    }
  });
}

/// The value that all elements of a bucket have; NaN if they differ.
inline double read(bucket::StateStore& store, int64_t buffer, int64_t bucket) {
  double found = 0;
  store.use(buffer, bucket, false, [&](const std::vector<at::Tensor>& parts) {
    found = parts.front()[0].item<double>();
    for (const at::Tensor& part : parts) {
      found = part.eq(found).all().item<bool>() ? found : std::numeric_limits<double>::quiet_NaN();
    }
  });
  return found;
}

/// The open file of this process whose name, which is gone, was `name`: its path in /proc.
inline fs::path open_file(const std::string& name) {
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (!error && target.ends_with(name + " (deleted)")) {
      return entry.path();
    }
  }
  throw Error("test", concat("no open file ", name));
}

} // namespace trireme::offload
