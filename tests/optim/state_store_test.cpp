// Masters and optimizer states that are not in memory between steps: the same bits, and one bucket at a time.
#include "flat_rank.h"

#include <trireme/base/file.h>

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <unistd.h>

namespace trireme::optim {
namespace {

namespace fs = std::filesystem;

/// Each bucket in a file of its own, read by acquire() and written by release().
class FileStore : public bucket::StateStore {
 public:
  explicit FileStore(fs::path folder) : folder_(std::move(folder)) {
    fs::create_directories(folder_);
  }
  ~FileStore() override {
    fs::remove_all(folder_);
  }

  void add(const std::vector<bucket::StoredArray>& arrays, at::Device) override {
    const int64_t buffer = std::ssize(buffers_);
    buffers_.push_back(arrays);
    for (int64_t bucket = 0; bucket < std::ssize(arrays.front().numel); ++bucket) {
      parts_ = parts(buffer, bucket);
      for (size_t i = 0; i < parts_.size(); ++i) {
        parts_[i].fill_(arrays[i].initial);
      }
      used_ = {buffer, bucket};
      release(buffer, bucket);
    }
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
    if (expected_) {
      EXPECT_EQ(*expected_, *used_) << "what prefetch() said";
    }
    expected_.reset();
    return parts_;
  }
  void release(int64_t buffer, int64_t bucket) override {
    EXPECT_EQ(used_, std::pair(buffer, bucket));
    used_.reset();
    std::string bytes;
    for (const at::Tensor& part : parts_) {
      bytes.append(static_cast<const char*>(part.data_ptr()), part.nbytes());
    }
    write_file_atomically(file(buffer, bucket), bytes);
    parts_.clear();
  }
  void prefetch(int64_t buffer, int64_t bucket) override {
    expected_ = {buffer, bucket};
  }

 private:
  fs::path file(int64_t buffer, int64_t bucket) const {
    return folder_ / concat(buffer, '.', bucket);
  }
  std::vector<at::Tensor> parts(int64_t buffer, int64_t bucket) const {
    std::vector<at::Tensor> empty;
    for (const bucket::StoredArray& array : buffers_[buffer]) {
      empty.push_back(torch::empty({array.numel[bucket]}, array.type));
    }
    return empty;
  }

  fs::path folder_;
  std::vector<std::vector<bucket::StoredArray>> buffers_;
  std::vector<at::Tensor> parts_;
  std::optional<std::pair<int64_t, int64_t>> used_;
  std::optional<std::pair<int64_t, int64_t>> expected_;
};

TEST(StateStoreTest, StatesInFilesTrainAsThoseInMemory) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_states_", ::getpid());
  for (const at::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    for (const StateType state_type : {StateType::fp32, StateType::bf16, StateType::int8}) {
      for (const Rule& rule : kRules) {
        if (is_lamb(rule) && state_type == StateType::int8) {
          continue;
        }
        const OptimizerOptions options = options_of(rule, state_type);
        Rank memory(options, 0, 1, type);
        Rank files(options, 0, 1, type, std::make_unique<FileStore>(folder));
        EXPECT_EQ(files.optimizer().bytes(), memory.optimizer().bytes());
        memory.run(1, 3);
        files.run(1, 3);
        files.load_states(files.states()); // what a checkpoint does
        memory.run(4, 5);
        files.run(4, 5);
        EXPECT_TRUE(torch::equal(files.flat().flat_data(), memory.flat().flat_data())) << memory.optimizer().rule().name() << ' ' << name(state_type);
        const auto expected = memory.states();
        for (const auto& [name, tensor] : files.states()) {
          EXPECT_TRUE(torch::equal(tensor, expected.at(name))) << name;
        }
      }
    }
  }
}

// Plain SGD has nothing to keep.
TEST(StateStoreTest, NothingIsAskedOfAStoreThatKeepsNothing) {
  OptimizerOptions options = options_of(SgdOptions{});
  Rank rank(options, 0, 1);
  rank.run(1, 2);
  EXPECT_EQ(rank.optimizer().bytes(), 0);
  EXPECT_TRUE(rank.states().empty());
}

} // namespace
} // namespace trireme::optim
