#include "fake_clone.h"
#include "hand_made.h"

#include <trireme/base/descriptor.h>
#include <trireme/base/log.h>

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <filesystem>
#include <functional>
#include <random>
#include <regex>
#include <string>
#include <vector>

// Every call below changes the disk. While `calls_left` counts, the process is killed (or gets `at_zero`)
// in front of the call that brings it to zero; `refuse_exchange` plays a file system
// without RENAME_EXCHANGE. These definitions stand before libc's for the whole program.
namespace {
int calls_left = 0;
int at_zero = SIGKILL;
bool refuse_exchange = false;
std::vector<std::string>* recorded = nullptr; // "sync NAME", "rename NAME"

void count_call() {
  if (calls_left > 0 && --calls_left == 0) {
    ::kill(::getpid(), at_zero);
  }
}

// The id of a save is random: "*" stands for its 32 digits.
void record(const char* what, const std::string& path) {
  if (recorded != nullptr) {
    const std::string name = path.substr(path.rfind('/') + 1);
    recorded->push_back(std::string(what) + ' ' + std::regex_replace(name, std::regex("[0-9a-f]{32}"), "*"));
  }
}
} // namespace

extern "C" {
ssize_t write(int fd, const void* data, size_t bytes) {
  count_call();
  return ::syscall(SYS_write, fd, data, bytes);
}
int fsync(int fd) {
  count_call();
  if (recorded != nullptr) {
    record("sync", std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).string());
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  count_call();
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, bytes));
}
int rename(const char* from, const char* to) noexcept {
  count_call();
  record("rename", to);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  count_call();
  if (refuse_exchange && flags != 0) {
    errno = EINVAL;
    return -1;
  }
  record("exchange", to);
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int unlink(const char* path) noexcept {
  count_call();
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  count_call();
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}
int mkdir(const char* path, mode_t mode) noexcept {
  count_call();
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  using trireme::checkpoint::fake_clones;
  if (request != FICLONERANGE || fake_clones == 0) {
    return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
  }
  count_call();
  const auto& range = *static_cast<const file_clone_range*>(argument);
  const bool is_aligned = range.src_offset % 4096 == 0 && range.src_length % 4096 == 0 &&
                          range.dest_offset % 4096 == 0 && range.src_length > 0;
  if (fake_clones < 0 || --fake_clones < 0 || !is_aligned) {
    errno = is_aligned ? EOPNOTSUPP : EINVAL;
    fake_clones = is_aligned ? -1 : fake_clones;
    return -1;
  }
  std::string bytes(range.src_length, '\0');
  if (::pread(static_cast<int>(range.src_fd), bytes.data(), bytes.size(), static_cast<off_t>(range.src_offset)) !=
      static_cast<ssize_t>(bytes.size())) {
    errno = EINVAL; // past its end
    return -1;
  }
  fake_clones = fake_clones == 0 ? -1 : fake_clones;
  return ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(range.dest_offset)) ==
                 static_cast<ssize_t>(bytes.size())
             ? 0
             : -1;
}
}

namespace trireme::checkpoint {

int fake_clones = 0;

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class TornSaveTest : public FolderTest {
 protected:
  // Two tensors and a state that must belong together. Children only copy memory: torch's threads do not survive a
  // fork.
  static void save_value(const fs::path& root, const std::string& tag, float value, const SaveOptions& options) {
    static at::Tensor w = at::empty({1000});
    static at::Tensor m = at::empty({500});
    std::fill_n(w.data_ptr<float>(), 1000, value);
    std::fill_n(m.data_ptr<float>(), 500, -value);
    save(root, tag, comm::Group(), {whole_of("w", w), whole_of("m", m)}, {{"value", value}}, json::object(), options);
  }

  // The value of the checkpoint that open() gives, after checking that it is of one piece.
  static float loaded_value(const fs::path& root) {
    const Checkpoint opened = Checkpoint::open(root);
    const float value = opened.state().at("value");
    EXPECT_TRUE(at::equal(opened.read("w"), at::full(opened.entry("w").shape, value)));
    EXPECT_TRUE(at::equal(opened.read("m"), at::full(opened.entry("m").shape, -value)));
    return value;
  }

  // Runs the save in a child that dies at its k-th change of the disk. True when it died.
  template <typename F>
  static bool dies_at(int k, F&& action) {
    const pid_t child = ::fork();
    if (child == 0) {
      calls_left = k;
      int code = 0;
      try {
        action();
      } catch (...) {
        code = 1;
      }
      calls_left = 0;
      ::_exit(code);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << "a save into a folder with leftovers failed";
    return WIFSIGNALED(status);
  }

  // Kills a save of `tag` at every change it makes to the disk, each time in the folder
  // that the deaths before left behind; returns how many moments there were.
  using Save =
      std::function<void(const fs::path& root, const std::string& tag, float value, const SaveOptions& options)>;
  int kill_at_every_moment(const std::function<std::string(int)>& tag, const SaveOptions& options,
                           const Save& save_it = &save_value) {
    float last = 0;
    save_it(folder_, "global_step0", last, options);
    for (int k = 1; k < 1000; ++k) {
      const bool died = dies_at(k, [&] { save_it(folder_, tag(k), static_cast<float>(k), options); });
      const float found = loaded_value(folder_);
      EXPECT_TRUE(found == last || found == static_cast<float>(k))
          << "killed at call " << k << ": found " << found << ", before " << last;
      if (!died) {
        EXPECT_EQ(found, static_cast<float>(k));
        return k - 1;
      }
      last = found;
    }
    return -1;
  }

  void SetUp() override {
    log::set_level(log::Level::error); // warnings about what was left are expected here
  }
  void TearDown() override { log::set_level(log::Level::warning); }
};

TEST_F(TornSaveTest, KilledAtEveryChangeOfTheDisk) {
  SaveOptions options;
  options.keep_last = 2;
  const int moments = kill_at_every_moment([](int k) { return step_tag(k); }, options);
  EXPECT_GT(moments, 15);
  EXPECT_LE(names_in(folder_).size(), 3U) << "leftovers are cleaned up";
}

TEST_F(TornSaveTest, KilledAtEveryChangeWhileReplacingATag) {
  const int moments = kill_at_every_moment([](int) { return "global_step0"; }, {});
  EXPECT_GT(moments, 15);
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step0", "latest"));
}

TEST_F(TornSaveTest, KilledAtEveryChangeWhileReplacingWithoutAtomicExchange) {
  refuse_exchange = true;
  const int moments = kill_at_every_moment([](int) { return "global_step0"; }, {});
  refuse_exchange = false;
  EXPECT_GT(moments, 15);
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step0", "latest"));
}

/// A store in a file, beside the checkpoints: w and m, lent one after the other, and overwritten before each save as a
/// step does.
class StoreFile : public Lender {
 public:
  explicit StoreFile(fs::path file) : file_(std::move(file)) {}
  static constexpr int64_t kNumel = 40'000; // enough to share blocks
  void set(float value) {
    std::fill_n(values_[0].data_ptr<float>(), kNumel, value);
    std::fill_n(values_[1].data_ptr<float>(), kNumel, -value);
    const Descriptor out(::open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (int i = 0; i < 2; ++i) {
      const auto bytes = static_cast<ssize_t>(values_[i].nbytes());
      EXPECT_EQ(::pwrite(out.get(), values_[i].const_data_ptr(), values_[i].nbytes(), i * bytes), bytes);
    }
  }
  void lend(const Take& take) override {
    take(0, values_[0]);
    take(1, values_[1]);
  }
  std::optional<bucket::Extent> extent(int64_t i) override { return bucket::Extent{file_, i * kNumel * 4, kNumel * 4}; }
  static std::vector<TensorShard> shards(const std::shared_ptr<StoreFile>& store) {
    const at::Tensor nothing = at::empty({kNumel}, at::TensorOptions(at::kFloat).device(at::kMeta));
    return {{"w", "optimizer", {kNumel}, 0, nothing, {}, {}, {store, 0, 0}},
            {"m", "optimizer", {kNumel}, 0, nothing, {}, {}, {store, 1, 0}}};
  }

 private:
  fs::path file_;
  at::Tensor values_[2] = {at::empty({kNumel}), at::empty({kNumel})};
};

TEST_F(TornSaveTest, KilledAtEveryChangeWhileAStoreIsStreamedOrShared) {
  fs::create_directories(folder_ / "store");
  const auto store = std::make_shared<StoreFile>(folder_ / "store" / "states");
  const auto save_it = [&](const fs::path& root, const std::string& tag, float value, const SaveOptions& options) {
    store->set(value);
    save(root, tag, comm::Group(), StoreFile::shards(store), {{"value", value}}, json::object(), options);
  };
  for (const int clones : {-1, 1000, 1}) {
    fake_clones = clones;
    SaveOptions options;
    options.keep_last = 2;
    const int moments = kill_at_every_moment([](int k) { return step_tag(k); }, options, save_it);
    EXPECT_GT(moments, clones == 1000 ? 16 : 15) << clones << " clones";
    fs::remove_all(folder_ / "latest");
    for (const std::string& name : names_in(folder_)) {
      if (name != "store") {
        fs::remove_all(folder_ / name);
      }
    }
  }
  fake_clones = 0;
}

// Another run saves into the same folder meanwhile: it must not take a save that is under way for a dead one's.
TEST_F(TornSaveTest, ASaveThatIsUnderWayIsLeftAlone) {
  int stops = 0;
  for (bool stopped = true; stopped; ++stops) {
    fs::remove_all(folder_ / "global_step1");
    const pid_t child = ::fork();
    if (child == 0) {
      at_zero = SIGSTOP;
      calls_left = stops + 1;
      int code = 0;
      try {
        save_value(folder_, "global_step1", 1, {});
      } catch (...) {
        code = 1;
      }
      ::_exit(code);
    }
    int status = 0;
    ::waitpid(child, &status, WUNTRACED);
    stopped = WIFSTOPPED(status);
    if (stopped) {
      save_value(folder_, "global_step2", 2, {});
      ::kill(child, SIGCONT);
      ::waitpid(child, &status, 0);
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "stopped at call " << stops + 1;
    EXPECT_EQ(Checkpoint::open(folder_ / "global_step1").state().at("value"), 1);
  }
  EXPECT_GT(stops, 10);
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step1", "global_step2", "latest"));
}

// What a power cut would find: nothing gets its final name before its bytes and the names inside it are on the disk.
TEST_F(TornSaveTest, EverythingIsSyncedBeforeItIsNamed) {
  SaveOptions options;
  options.keep_last = 1;
  save_value(folder_, "global_step1", 1, options);
  std::vector<std::string> calls;
  recorded = &calls;
  save_value(folder_, "global_step2", 2, options);
  save_value(folder_, "global_step2", 3, options);
  recorded = nullptr;
  const std::string pid = concat(".tmp.", ::getpid());
  const std::string root = folder_.filename().string();
  const std::vector<std::string> shard_and_manifest = {
      concat("sync .rank00000.safetensors", pid), "rename rank00000.safetensors", "sync .tmp-global_step2-*",
      concat("sync .manifest.json", pid),         "rename manifest.json",         "sync .tmp-global_step2-*"};
  const std::vector<std::string> latest = {"sync " + root, "sync .tmp-global_step2-*.latest", "rename latest",
                                           "sync " + root};
  std::vector<std::string> expected = shard_and_manifest;
  expected.push_back("rename global_step2");
  expected.insert(expected.end(), latest.begin(), latest.end());
  expected.push_back("rename .tmp-global_step2-*.removed1"); // only now the older one goes
  expected.insert(expected.end(), shard_and_manifest.begin(), shard_and_manifest.end());
  expected.push_back("exchange global_step2");
  expected.insert(expected.end(), latest.begin(), latest.end());
  EXPECT_EQ(calls, expected);
}

TEST_F(TornSaveTest, KilledAtRandomMomentsWhatWasReportedSavedIsThere) {
  SaveOptions options;
  options.keep_last = 2;
  at::Tensor w = at::empty({1 << 20});
  std::fill_n(w.data_ptr<float>(), w.numel(), 0.0F);
  std::mt19937 random(2);
  int64_t reported = 0;
  save(folder_, step_tag(0), comm::Group(), {whole_of("w", w)});
  for (int trial = 0; trial < 20; ++trial) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t step = reported + 1;; ++step) {
        std::fill_n(w.data_ptr<float>(), w.numel(), static_cast<float>(step));
        save(folder_, step_tag(step), comm::Group(), {whole_of("w", w)}, {}, {}, options);
        if (::write(ends[1], &step, sizeof step) != sizeof step) {
          ::_exit(1);
        }
      }
    }
    ::close(ends[1]);
    ::usleep(static_cast<useconds_t>(random() % 40'000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (int64_t step = 0; ::read(ends[0], &step, sizeof step) == sizeof step;) {
      reported = step;
    }
    ::close(ends[0]);
    const Checkpoint opened = Checkpoint::open(folder_);
    ASSERT_GE(opened.step(), reported);
    ASSERT_LE(opened.step(), reported + 1);
    ASSERT_TRUE(at::equal(opened.read("w"), at::full({1 << 20}, static_cast<double>(opened.step()))));
    reported = opened.step();
  }
}

TEST_F(TornSaveTest, AFileSizeLimitIsAnErrorAndNotADeath) {
  save_value(folder_, "global_step1", 1, {});
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  for (const rlim_t bytes : {0, 100, 3000, 6100}) { // the safetensors file has about 6.2 kB
    rlimit tight = before;
    tight.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &tight);
    const std::string message = message_of<Error>([&] { save_value(folder_, "global_step2", 2, {}); });
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_THAT(message, AllOf(HasSubstr("cannot write"), HasSubstr("rank00000.safetensors"),
                               HasSubstr("File too large (needs 6.")));
    EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step1", "latest"));
    EXPECT_EQ(loaded_value(folder_), 1);
  }
  save_value(folder_, "global_step2", 2, {});
  EXPECT_EQ(loaded_value(folder_), 2);
}

TEST_F(TornSaveTest, AFailureAtTheVeryEndIsTakenBack) {
  save_value(folder_, "global_step1", 1, {});
  fs::remove(folder_ / "latest");
  fs::create_directories(folder_ / "latest" / "in the way"); // `latest` cannot be replaced
  for (const bool without_exchange : {false, true}) {
    refuse_exchange = without_exchange;
    EXPECT_THAT(message_of<Error>([&] { save_value(folder_, "global_step2", 2, {}); }), HasSubstr("latest"));
    EXPECT_THAT(message_of<Error>([&] { save_value(folder_, "global_step1", 3, {}); }), HasSubstr("latest"));
    refuse_exchange = false;
    EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step1", "latest"));
    EXPECT_EQ(loaded_value(folder_), 1);
  }
}

class FullDiskTest : public TornSaveTest {
 protected:
  void SetUp() override {
    TornSaveTest::SetUp();
    disk_ = folder_ / "disk";
    fs::create_directories(disk_);
    is_mounted_ = ::geteuid() == 0 && ::mount("tmpfs", disk_.c_str(), "tmpfs", 0, "size=256k") == 0;
    if (!is_mounted_) {
      GTEST_SKIP() << "needs root and the right to mount a tmpfs";
    }
  }
  void TearDown() override {
    TornSaveTest::TearDown();
    if (is_mounted_) {
      ::umount2(disk_.c_str(), MNT_DETACH);
    }
  }
  fs::path disk_;
  bool is_mounted_ = false;
};

TEST_F(FullDiskTest, NamesNeededAndFreeBytesAndKeepsWhatWasThere) {
  at::Tensor large = at::zeros({25'000}); // 100 kB: two fit, three do not
  save(disk_, "global_step1", comm::Group(), {whole_of("w", large)});
  save(disk_, "global_step2", comm::Group(), {whole_of("w", large)});
  const std::string message =
      message_of<Error>([&] { save(disk_, "global_step3", comm::Group(), {whole_of("w", large)}); });
  EXPECT_THAT(message, AllOf(HasSubstr("rank00000.safetensors"), HasSubstr("No space left on device (needs 100 kB, "),
                             HasSubstr("kB free)")));
  EXPECT_THAT(names_in(disk_), UnorderedElementsAre("global_step1", "global_step2", "latest"));
  EXPECT_EQ(Checkpoint::open(disk_).step(), 2);
  fs::remove_all(disk_ / "global_step1");
  save(disk_, "global_step3", comm::Group(), {whole_of("w", large)});
  EXPECT_EQ(Checkpoint::open(disk_).step(), 3);
}

TEST_F(FullDiskTest, WhereverItRunsFullNothingIsLost) {
  save_value(disk_, "global_step1", 1, {});
  save_value(disk_, "global_step2", 1.5F, {});
  int num_failed = 0;
  for (int pages_left = 0; pages_left < 12; ++pages_left) {
    put_content(disk_ / "filler", "");
    const auto free = fs::space(disk_).available;
    put_content(disk_ / "filler",
                std::string(free - std::min<uintmax_t>(free, static_cast<uintmax_t>(pages_left) * 4096), 'x'));
    const float before = loaded_value(disk_);
    const std::string message =
        message_of<Error>([&] { save_value(disk_, "global_step2", static_cast<float>(pages_left) + 2, {}); });
    num_failed += message.empty() ? 0 : 1;
    EXPECT_EQ(loaded_value(disk_), message.empty() ? static_cast<float>(pages_left) + 2 : before) << message;
    EXPECT_TRUE(message.empty() || message.find("No space left") != std::string::npos) << message;
    for (const std::string& name : names_in(disk_)) {
      EXPECT_THAT(name, testing::Not(testing::StartsWith(".")));
    }
  }
  EXPECT_GE(num_failed, 3);
  EXPECT_LT(num_failed, 12);
}

} // namespace
} // namespace trireme::checkpoint
