// Tensors that have memory only while they are lent, and that lie in files whose blocks a save shares.
#include "fake_clone.h"
#include "hand_made.h"

#include <trireme/base/log.h>
#include <trireme/checkpoint/hash.h>

#include <tests/support/xfs_disk.h>

#include <fcntl.h>
#include <unistd.h>

#include <optional>

namespace trireme::checkpoint {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kBlock = 4096;

/// Lends copies of its tensors, and counts their bytes while they live.
class CountingLender : public Lender {
 public:
  CountingLender(std::vector<at::Tensor> tensors, std::vector<std::string>& events, std::string name)
      : tensors_(std::move(tensors)), events_(events), name_(std::move(name)) {}

  void lend(const Take& take) override {
    events_.push_back("lend " + name_);
    std::vector<at::Tensor> alive;
    for (const at::Tensor& tensor : tensors_) {
      auto* const copy = new at::Tensor(tensor.clone());
      live += static_cast<int64_t>(tensor.nbytes());
      alive.push_back(at::from_blob(
          copy->data_ptr(), tensor.sizes(),
          [copy](void*) {
            live -= static_cast<int64_t>(copy->nbytes());
            delete copy;
          },
          tensor.options()));
    }
    peak = std::max(peak, live);
    for (size_t i = 0; i < alive.size(); ++i) {
      take(static_cast<int64_t>(i), alive[i]);
    }
  }
  void expect() override { events_.push_back("expect " + name_); }

  static inline int64_t live = 0;
  static inline int64_t peak = 0;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<std::string>& events_;
  std::string name_;
};

NamedTensor lent(const std::string& name, const at::Tensor& like, const std::shared_ptr<Lender>& by, int64_t i,
                 int64_t first = 0) {
  return {name, at::empty(like.sizes(), like.options().device(at::kMeta)), {by, i, first}};
}

/// A file of tensors with gaps between them, as a store in files may have it.
class FileLender : public Lender {
 public:
  FileLender(fs::path file, const std::vector<at::Tensor>& tensors, int64_t first_offset, int64_t gap)
      : file_(std::move(file)), tensors_(tensors) {
    std::string content(static_cast<size_t>(first_offset), 'x');
    for (const at::Tensor& tensor : tensors) {
      offsets_.push_back(static_cast<int64_t>(content.size()));
      content.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
      content.append(static_cast<size_t>(gap), '\0');
    }
    put_content(file_, content);
  }
  void lend(const Take& take) override {
    ++times_lent;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      take(static_cast<int64_t>(i), tensors_[i]);
    }
  }
  std::optional<bucket::Extent> extent(int64_t i) override {
    return bucket::Extent{file_, offsets_[i], static_cast<int64_t>(tensors_[i].nbytes())};
  }
  int times_lent = 0;

 private:
  fs::path file_;
  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> offsets_;
};

class LentTest : public FolderTest {
 protected:
  fs::path file(const char* name = "lent.safetensors") const { return folder_ / name; }
  void TearDown() override { fake_clones = 0; }
  // Whether the file has exactly these tensors, but for paddings.
  static void expect_content(const fs::path& path, const std::vector<NamedTensor>& expected) {
    const Safetensors read = Safetensors::open(path);
    size_t found = 0;
    for (const TensorInfo& info : read.tensors()) {
      found += info.name.starts_with("padding@") ? 0 : 1;
    }
    EXPECT_EQ(found, expected.size());
    for (const NamedTensor& one : expected) {
      EXPECT_TRUE(at::equal(read.tensor(one.name), one.tensor)) << one.name;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(read.tensor(one.name).data_ptr()) % one.tensor.element_size(), 0U);
    }
  }
};

TEST_F(LentTest, TheFileIsThatOfTensorsInMemory) {
  std::vector<std::string> events;
  std::vector<NamedTensor> memory;
  std::vector<NamedTensor> mixed;
  int64_t largest = 0;
  for (int b = 0; b < 5; ++b) {
    std::vector<at::Tensor> tensors = {at::randn({1000 + b, 3}), at::randn({500}), at::randn({77}).to(at::kBFloat16),
                                       at::randint(0, 100, {33}, at::kLong)};
    int64_t bytes = 0;
    const auto lender = std::make_shared<CountingLender>(tensors, events, std::to_string(b));
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string name = concat("t", b, '.', i);
      bytes += static_cast<int64_t>(tensors[i].nbytes());
      memory.push_back({name, tensors[i]});
      mixed.push_back(lent(name, tensors[i], lender, static_cast<int64_t>(i)));
    }
    largest = std::max(largest, bytes);
    for (const auto& [name, first, n] : {std::tuple{"front", 0, 20}, {"rest", 20, 30}}) { // two parts of one tensor
      memory.push_back({concat(name, b), tensors[1].narrow(0, first, n)});
      mixed.push_back(lent(concat(name, b), memory.back().tensor, lender, 1, first));
    }
    memory.push_back({concat("own", b), at::ones({9})});
    mixed.push_back(memory.back());
  }
  const WrittenFile expected = write_safetensors(file("memory"), memory, {{"format", "pt"}});
  CountingLender::live = CountingLender::peak = 0;
  const WrittenFile written = write_safetensors(file(), mixed, {{"format", "pt"}});
  EXPECT_EQ(content_of(file()), content_of(file("memory")));
  EXPECT_EQ(written.hash, expected.hash);
  EXPECT_EQ(written.bytes, expected.bytes);
  EXPECT_EQ(written.shared_bytes, 0U);
  EXPECT_EQ(CountingLender::live, 0);
  EXPECT_LE(CountingLender::peak, largest) << "more than one lender at a time";
  EXPECT_GT(CountingLender::peak, 0);
}

TEST_F(LentTest, TheNextLenderIsToldWhileOneLends) {
  std::vector<std::string> events;
  std::vector<NamedTensor> tensors;
  for (const char* name : {"a", "b", "c"}) {
    const auto lender = std::make_shared<CountingLender>(std::vector{at::ones({4}), at::ones({4})}, events, name);
    tensors.push_back(lent(concat(name, 0), at::ones({4}), lender, 0));
    tensors.push_back({concat(name, "own"), at::ones({2})});
    if (*name != 'b') {
      tensors.push_back(lent(concat(name, 1), at::ones({4}), lender, 1));
    }
  }
  write_safetensors(file(), tensors);
  EXPECT_THAT(events,
              ElementsAre("lend a", "expect b", "lend a", "expect b", "lend b", "expect c", "lend c", "lend c"));
}

TEST_F(LentTest, WhatIsNotLentAsSaidEndsTheWriteAndLeavesNothing) {
  std::vector<std::string> events;
  const auto lender = std::make_shared<CountingLender>(std::vector{at::ones({10})}, events, "a");
  const auto refusal = [&](const NamedTensor& tensor) {
    return message_of<Error>([&] { write_safetensors(file(), {{"w", at::ones({3})}, tensor}); });
  };
  EXPECT_THAT(refusal(lent("more", at::ones({11}), lender, 0)),
              AllOf(HasSubstr("\"more\""), HasSubstr("11 Float"), HasSubstr("10 Float")));
  EXPECT_THAT(refusal(lent("other", at::ones({10}, at::kHalf), lender, 0)), HasSubstr("10 Half"));
  EXPECT_THAT(refusal(lent("behind", at::ones({8}), lender, 0, 3)), HasSubstr("from element 3"));
  EXPECT_THAT(refusal(lent("nobody", at::ones({10}), lender, 1)), HasSubstr("no values were lent for \"nobody\""));
  EXPECT_THAT(message_of<InputError>([&] { write_safetensors(file(), {{"meta", at::empty({3}, at::kMeta)}}); }),
              HasSubstr("has no values"));
  class Fails : public Lender {
    void lend(const Take&) override { throw Error("store", "the disk is gone"); }
  };
  EXPECT_THAT(refusal(lent("gone", at::ones({10}), std::make_shared<Fails>(), 0)), HasSubstr("the disk is gone"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

/// States of three buckets in files; what is saved of them, and the same in memory.
struct Stored {
  std::vector<std::shared_ptr<FileLender>> lenders;
  std::vector<NamedTensor> lent_ones;
  std::vector<NamedTensor> memory;

  Stored(const fs::path& folder, int64_t first_offset, int64_t gap) {
    for (int b = 0; b < 3; ++b) {
      const std::vector<at::Tensor> tensors = {at::randn({40'000 + 7 * b}), at::randn({25'000}), at::randn({100})};
      lenders.push_back(std::make_shared<FileLender>(folder / concat("store", b), tensors, first_offset, gap));
      for (size_t i = 0; i < tensors.size(); ++i) {
        const std::string name = concat("s", b, '.', i);
        memory.push_back({name, tensors[i]});
        lent_ones.push_back(lent(name, tensors[i], lenders.back(), static_cast<int64_t>(i)));
      }
      memory.push_back({concat("own", b), at::randn({123})});
      lent_ones.push_back(memory.back());
    }
    memory.push_back({"bytes", at::randint(0, 255, {11}, at::kByte)});
    lent_ones.push_back(memory.back());
  }
};

TEST_F(LentTest, BlocksOfAFileAreShared) {
  for (const auto& [offset, gap] :
       {std::pair<int64_t, int64_t>{0, 0}, {3 * kBlock, 64}, {kBlock + 64, 60}, {4, 4000}}) {
    const Stored stored(folder_, offset, gap);
    fake_clones = 100;
    const WrittenFile written = write_safetensors(file(), stored.lent_ones, {{"format", "pt"}});
    EXPECT_EQ(fake_clones, 97) << "one for each file";
    expect_content(file(), stored.memory);
    EXPECT_EQ(written.hash, hash_of_file(file()));
    EXPECT_EQ(written.bytes, fs::file_size(file()));
    EXPECT_EQ(written.shared_bytes % kBlock, 0U);
    EXPECT_GT(written.shared_bytes, written.bytes - 3 * 2 * kBlock - 3 * 4096 - 8 * kBlock)
        << "all but what is around them";
    for (const auto& lender : stored.lenders) {
      EXPECT_EQ(lender->times_lent, 1) << "to be compared";
    }
  }
}

TEST_F(LentTest, WhereBlocksCannotBeSharedTheFileIsThatOfMemory) {
  const Stored stored(folder_, kBlock, 64);
  fake_clones = -1; // refuses
  const WrittenFile written = write_safetensors(file(), stored.lent_ones, {{"format", "pt"}});
  fake_clones = 0;
  const WrittenFile expected = write_safetensors(file("memory"), stored.memory, {{"format", "pt"}});
  EXPECT_EQ(content_of(file()), content_of(file("memory")));
  EXPECT_EQ(written.hash, expected.hash);
  EXPECT_EQ(written.shared_bytes, 0U);
  EXPECT_EQ(names_in(folder_).size(), 5U) << "three stores and two files";
}

TEST_F(LentTest, ARefusalInTheMiddleCopies) {
  const Stored stored(folder_, kBlock, 64);
  fake_clones = 1;
  const WrittenFile written = write_safetensors(file(), stored.lent_ones);
  expect_content(file(), stored.memory);
  EXPECT_EQ(written.hash, hash_of_file(file()));
  EXPECT_GT(written.shared_bytes, 0U);
  EXPECT_EQ(stored.lenders[0]->times_lent, 1);
  EXPECT_EQ(stored.lenders[1]->times_lent, 1);
}

// What is lent was checked by its store; blocks of the same file were not.
TEST_F(LentTest, WhatTheDiskHasChangedIsNotShared) {
  const int64_t gap = 64;
  for (const int64_t place :
       {kBlock + 64, kBlock + 64 + 40'000 * 4 + gap + 10'000}) { // of the first bucket's first and second tensor
    const Stored stored(folder_, kBlock + 64, gap);
    std::string content = content_of(folder_ / "store0");
    content[static_cast<size_t>(place + 2 * kBlock)] ^= 1;
    put_content(folder_ / "store0", content);
    fake_clones = 100;
    std::string said;
    log::set_sink([&](const std::string& line) { said += line; });
    const WrittenFile written = write_safetensors(file(), stored.lent_ones);
    log::set_sink(nullptr);
    expect_content(file(), stored.memory);
    EXPECT_EQ(written.hash, hash_of_file(file()));
    EXPECT_GT(written.shared_bytes, 2 * 40'000U * 4) << "the other buckets";
    EXPECT_LT(written.shared_bytes, 3 * 65'000U * 4 - 20'000U * 4) << "and not all of this one";
    EXPECT_THAT(said, AllOf(HasSubstr("the disk has changed bytes of "), HasSubstr(file().string())));
    EXPECT_EQ(content_of(folder_ / "store0"), content) << "what is shared is not written to";
  }
}

TEST_F(LentTest, SmallTensorsAreCopied) {
  std::vector<at::Tensor> tensors = {at::randn({1000}), at::randn({1000})};
  const auto lender = std::make_shared<FileLender>(file("store"), tensors, 0, 0);
  fake_clones = 100;
  write_safetensors(file(), {lent("a", tensors[0], lender, 0), lent("b", tensors[1], lender, 1)});
  EXPECT_EQ(fake_clones, 100);
  write_safetensors(file("memory"), {{"a", tensors[0]}, {"b", tensors[1]}});
  EXPECT_EQ(content_of(file()), content_of(file("memory")));
}

TEST_F(LentTest, TheManifestFitsAFileWithPaddings) {
  const Stored stored(folder_, kBlock + 64, 60);
  std::vector<TensorShard> shards;
  for (const NamedTensor& one : stored.lent_ones) {
    shards.push_back({one.name, "optimizer", one.tensor.sizes().vec(), 0, one.tensor, {}, {}, one.lent});
  }
  fake_clones = 100;
  save(folder_ / "saved", "global_step1", comm::Group(), shards);
  EXPECT_LT(fake_clones, 100);
  const Checkpoint opened = Checkpoint::open(folder_ / "saved");
  EXPECT_EQ(opened.names().size(), stored.memory.size());
  for (const NamedTensor& one : stored.memory) {
    EXPECT_TRUE(at::equal(opened.read(one.name), one.tensor)) << one.name;
  }
}

class SharedBlocksTest : public LentTest {
 protected:
  void SetUp() override {
    disk_ = folder_ / "disk";
    mounted_.emplace(disk_);
    if (!mounted_->is_mounted()) {
      GTEST_SKIP() << test::XfsDisk::kNeeds;
    }
  }
  void TearDown() override {
    LentTest::TearDown();
    mounted_.reset();
  }
  fs::path disk_;
  std::optional<test::XfsDisk> mounted_;
};

TEST_F(SharedBlocksTest, ASaveTakesNoRoomUntilTheStoreIsWritten) {
  const at::Tensor state = at::randn({4 << 20}); // 16 MiB
  const at::Tensor other = at::randn({100});
  const auto lender = std::make_shared<FileLender>(disk_ / "store", std::vector{other, state}, 0, 64);
  const auto free_before = mounted_->free_bytes();
  save(disk_ / "saved", "global_step1", comm::Group(),
       {{"other", "optimizer", {100}, 0, lent("", other, lender, 0).tensor, {}, {}, {lender, 0, 0}},
        {"state", "optimizer", {4 << 20}, 0, lent("", state, lender, 1).tensor, {}, {}, {lender, 1, 0}}});
  EXPECT_EQ(lender->times_lent, 1) << "to be compared";
  EXPECT_LT(free_before - mounted_->free_bytes(), uintmax_t{4} << 20);
  // What the store writes later does not reach the checkpoint.
  const int fd = ::open((disk_ / "store").c_str(), O_WRONLY | O_CLOEXEC);
  const std::string zeros(size_t{8} << 20, '\0');
  ASSERT_EQ(::pwrite(fd, zeros.data(), zeros.size(), 0), static_cast<ssize_t>(zeros.size()));
  ::fsync(fd);
  ::close(fd);
  EXPECT_GT(free_before - mounted_->free_bytes(), uintmax_t{7} << 20);
  const Checkpoint opened = Checkpoint::open(disk_ / "saved"); // checks the hash
  EXPECT_TRUE(at::equal(opened.read("state"), state));
  EXPECT_TRUE(at::equal(opened.read("other"), other));
}

TEST_F(SharedBlocksTest, WithoutRoomForACopyNothingIsShared) {
  const at::Tensor state = at::randn({8 << 20}); // 32 MiB
  const auto lender = std::make_shared<FileLender>(disk_ / "store", std::vector{state}, 0, 0);
  const int fd = ::open((disk_ / "filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::fallocate(fd, 0, 0, static_cast<off_t>(mounted_->free_bytes() - (uintmax_t{16} << 20))), 0);
  ::close(fd);
  const std::string message =
      message_of<Error>([&] { write_safetensors(disk_ / "saved.safetensors", {lent("state", state, lender, 0)}); });
  EXPECT_THAT(message, AllOf(HasSubstr("No space left on device (needs 33"), HasSubstr("MB free)")));
  EXPECT_FALSE(fs::exists(disk_ / "saved.safetensors"));
  fs::remove(disk_ / "filler");
  while (mounted_->free_bytes() < uintmax_t{64} << 20) { // the file system frees it by and by
  }
  EXPECT_GT(write_safetensors(disk_ / "saved.safetensors", {lent("state", state, lender, 0)}).shared_bytes, 0U);
}

} // namespace
} // namespace trireme::checkpoint
