#pragma once

#include <trireme/base/file.h>
#include <trireme/shards/bucket/state_store.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::test {

/// Each bucket in a file of its own, read by acquire() and written by release().
class FileStore : public bucket::StateStore {
 public:
  explicit FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
  }
  ~FileStore() override { std::filesystem::remove_all(folder_); }

  int64_t add(const std::vector<bucket::StoredArray>& arrays, at::Device) override {
    const int64_t buffer = kFirst + std::ssize(buffers_);
    buffers_.push_back(arrays);
    for (int64_t bucket = 0; bucket < std::ssize(arrays.front().numel); ++bucket) {
      parts_ = parts(buffer, bucket);
      for (size_t i = 0; i < parts_.size(); ++i) {
        parts_[i].fill_(arrays[i].initial);
      }
      used_ = {buffer, bucket};
      release(buffer, bucket, true);
    }
    return buffer;
  }
  const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override {
    EXPECT_FALSE(used_) << "two buckets at a time";
    used_ = {buffer, bucket};
    parts_ = parts(buffer, bucket);
    const std::string bytes = read_file(file(buffer, bucket));
    size_t begin = 0;
    for (const at::Tensor& part : parts_) {
      std::memcpy(part.data_ptr(), bytes.data() + begin, part.nbytes());
      begin += part.nbytes();
    }
    EXPECT_EQ(begin, bytes.size());
    if (expected_ && expected_->second != 0) { // the first bucket is the next step's, and a save may come before it
      EXPECT_EQ(*expected_, *used_) << "what prefetch() said";
    }
    expected_.reset();
    return parts_;
  }
  void release(int64_t buffer, int64_t bucket, bool modified) override {
    EXPECT_EQ(used_, std::pair(buffer, bucket));
    used_.reset();
    std::string bytes;
    for (const at::Tensor& part : parts_) {
      bytes.append(static_cast<const char*>(part.data_ptr()), part.nbytes());
    }
    if (modified) {
      ++writes_;
      write_file_atomically(file(buffer, bucket), bytes);
    } else {
      EXPECT_EQ(read_file(file(buffer, bucket)), bytes) << "was said not to be modified";
    }
    parts_.clear();
  }
  void prefetch(int64_t buffer, int64_t bucket) override { expected_ = {buffer, bucket}; }
  std::optional<bucket::Extent> extent(int64_t buffer, int64_t bucket, int64_t array) override {
    EXPECT_FALSE(used_) << "is acquired";
    int64_t offset = 0;
    for (int64_t i = 0; i < array; ++i) {
      offset += bytes(buffer, bucket, i);
    }
    return bucket::Extent{file(buffer, bucket), offset, bytes(buffer, bucket, array)};
  }
  int writes() const { return writes_; }
  /// What was to come does not, because somebody threw.
  void expect_nothing() { expected_.reset(); }

 private:
  static constexpr int64_t kFirst = 3; // any number will do

  std::filesystem::path file(int64_t buffer, int64_t bucket) const { return folder_ / concat(buffer, '.', bucket); }
  int64_t bytes(int64_t buffer, int64_t bucket, int64_t array) const {
    const bucket::StoredArray& stored = buffers_[buffer - kFirst][array];
    return stored.numel[bucket] * static_cast<int64_t>(c10::elementSize(stored.type));
  }
  std::vector<at::Tensor> parts(int64_t buffer, int64_t bucket) const {
    std::vector<at::Tensor> empty;
    for (const bucket::StoredArray& array : buffers_[buffer - kFirst]) {
      empty.push_back(at::empty({array.numel[bucket]}, array.type));
    }
    return empty;
  }

  std::filesystem::path folder_;
  std::vector<std::vector<bucket::StoredArray>> buffers_;
  std::vector<at::Tensor> parts_;
  std::optional<std::pair<int64_t, int64_t>> used_;
  std::optional<std::pair<int64_t, int64_t>> expected_;
  int writes_ = 0;
};

} // namespace trireme::test
