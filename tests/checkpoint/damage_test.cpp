#include "hand_made.h"

#include <trireme/checkpoint/describe.h>

#include <nlohmann/json.hpp>

#include <chrono>
#include <random>
#include <thread>

namespace trireme::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Two checkpoints of two ranks; the newer one gets damaged.
class CheckpointDamageTest : public FolderTest {
 protected:
  CheckpointDamageTest() {
    for (const int64_t step : {1, 2}) {
      write_by_hand(folder_ / step_tag(step), shards(step), step);
    }
    put_content(folder_ / "latest", "global_step2\n");
  }

  static at::Tensor weight(int64_t step) {
    return at::arange(60, at::kFloat).view({6, 10}) + static_cast<double>(1000 * step);
  }
  static std::vector<std::vector<TensorShard>> shards(int64_t step) {
    const at::Tensor w = weight(step);
    return {{part_of("w", w, 0, 30), whole_of("a", at::full({4}, static_cast<double>(step)))},
            {part_of("w", w, 30, 60)}};
  }

  // Opens the folder, checks that what comes is whole, and returns its step; `warning_` keeps stderr.
  int64_t loaded_step(const OpenOptions& options = {}) {
    testing::internal::CaptureStderr();
    std::optional<Checkpoint> opened;
    std::string failure;
    try {
      opened = Checkpoint::open(folder_, "", options);
    } catch (const InputError& error) {
      failure = error.what();
    }
    warning_ = testing::internal::GetCapturedStderr() + failure;
    if (!opened) {
      return -1;
    }
    EXPECT_TRUE(at::equal(opened->read("w"), weight(opened->step())));
    EXPECT_TRUE(at::equal(opened->read("a"), at::full({4}, static_cast<double>(opened->step()))));
    EXPECT_EQ(opened->state().at("serial"), opened->step());
    return opened->step();
  }

  std::vector<fs::path> newest_files() const {
    const fs::path newest = folder_ / "global_step2";
    return {newest / "rank00000.safetensors", newest / "rank00001.safetensors", newest / "manifest.json"};
  }

  std::string warning_;
};

TEST_F(CheckpointDamageTest, WholeOnesLoadWithoutWarning) {
  EXPECT_EQ(loaded_step(), 2);
  EXPECT_EQ(warning_, "");
}

TEST_F(CheckpointDamageTest, AThousandFlippedBitsAreNamedAndNeverLoaded) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 1000; ++trial) {
    const fs::path file = newest_files()[random() % 3];
    const std::string whole = content_of(file);
    std::string damaged = whole;
    const size_t at = random() % whole.size();
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << random() % 8);
    put_content(file, damaged);
    ASSERT_EQ(loaded_step(), 1) << file << " byte " << at;
    ASSERT_THAT(warning_, AllOf(HasSubstr(file.string()), HasSubstr("taking"), HasSubstr("global_step1")))
        << " byte " << at;
    put_content(file, whole);
  }
}

TEST_F(CheckpointDamageTest, EveryTruncationIsNamed) {
  for (const fs::path& file : newest_files()) {
    const std::string whole = content_of(file);
    for (size_t i = 0; i < 200; ++i) {
      put_content(file, whole.substr(0, i * whole.size() / 200));
      ASSERT_EQ(loaded_step(), 1) << file;
      ASSERT_THAT(warning_, HasSubstr(file.string()));
    }
    put_content(file, whole + "x");
    EXPECT_EQ(loaded_step(), 1) << "a byte too many in " << file;
    put_content(file, whole);
  }
}

TEST_F(CheckpointDamageTest, MessagesNameFileTensorAndBothHashes) {
  const fs::path file = newest_files()[1];
  std::string content = content_of(file);
  content.back() ^= 1;
  put_content(file, content);
  EXPECT_EQ(loaded_step(), 1);
  const std::string expected = Manifest::read(folder_ / "global_step2").files[1].hash;
  EXPECT_THAT(warning_, AllOf(HasSubstr("rank00001.safetensors: hash is "), HasSubstr("must be " + expected),
                              HasSubstr("(it holds w)")));
  put_content(file, content.substr(1));
  EXPECT_EQ(loaded_step(), 1);
  EXPECT_THAT(warning_, HasSubstr(concat("has ", content.size() - 1, " bytes, must have ", content.size())));
  fs::remove(file);
  EXPECT_EQ(loaded_step(), 1);
  EXPECT_THAT(warning_, HasSubstr("rank00001.safetensors is missing (it holds w)"));
}

TEST_F(CheckpointDamageTest, SwappedShardsAreNoticed) {
  const auto files = newest_files();
  fs::rename(files[0], folder_ / "x");
  fs::rename(files[1], files[0]);
  fs::rename(folder_ / "x", files[1]);
  EXPECT_EQ(loaded_step(), 1);
}

TEST_F(CheckpointDamageTest, AShardOfAnotherSaveIsNoticedEvenWithoutHashes) {
  const fs::path stale = folder_ / "global_step1" / "rank00001.safetensors";
  fs::copy_file(stale, newest_files()[1], fs::copy_options::overwrite_existing);
  EXPECT_EQ(loaded_step(), 1) << "same size, other content";
  OpenOptions options;
  options.verify_hashes = false;
  const Checkpoint opened = Checkpoint::open(folder_, "", options);
  EXPECT_EQ(opened.step(), 2);
  EXPECT_THAT(message_of<InputError>([&] { opened.read("w"); }), HasSubstr("is from another save"));
}

TEST_F(CheckpointDamageTest, AManifestOfAnotherSaveIsNoticed) {
  fs::copy_file(folder_ / "global_step1" / "manifest.json", newest_files()[2], fs::copy_options::overwrite_existing);
  EXPECT_EQ(loaded_step(), 1);
}

TEST_F(CheckpointDamageTest, LatestMayBeMissingStaleOrNonsense) {
  for (const std::string& text : {std::string(""), std::string("global_step9\n"), std::string("../x"),
                                  std::string("\0\xff", 2), std::string(100'000, 'x')}) {
    put_content(folder_ / "latest", text);
    EXPECT_EQ(loaded_step(), 2);
    EXPECT_THAT(warning_, HasSubstr("latest"));
  }
  fs::remove(folder_ / "latest");
  EXPECT_EQ(loaded_step(), 2);
  EXPECT_THAT(warning_, HasSubstr("latest is missing"));
  fs::create_directories(folder_ / "latest");
  EXPECT_EQ(loaded_step(), 2);
}

// A save that was killed after it had put its checkpoint in place.
TEST_F(CheckpointDamageTest, ANewerOneThanLatestNamesIsTakenIfItIsWhole) {
  put_content(folder_ / "latest", "global_step1\n");
  EXPECT_EQ(loaded_step(), 1) << "a person goes back";
  EXPECT_THAT(warning_,
              AllOf(HasSubstr("latest was made to name global_step1 after global_step2 had been saved; taking"),
                    HasSubstr("global_step1 (step 1)")));
  fs::last_write_time(folder_ / "latest",
                      fs::last_write_time(folder_ / "global_step2" / "manifest.json") - std::chrono::milliseconds(1));
  EXPECT_EQ(find_newest(folder_)->filename(), "global_step2");
  EXPECT_EQ(loaded_step(), 2);
  EXPECT_THAT(warning_, AllOf(HasSubstr("latest names global_step1, and global_step2 was saved after it; taking"),
                              HasSubstr("global_step2 (step 2)")));
  fs::remove(newest_files()[1]);
  EXPECT_EQ(loaded_step(), 1);
  EXPECT_THAT(warning_, AllOf(HasSubstr("rank00001.safetensors is missing"), HasSubstr("taking"),
                              HasSubstr("global_step1 (step 1)")));
  EXPECT_EQ(Checkpoint::open(folder_, "global_step1").step(), 1);
}

// `trireme generate` and `export` beside a run that saves and keeps one checkpoint.
TEST_F(CheckpointDamageTest, WhatIsOpenedBesideARunThatSavesCanBeRead) {
  OpenOptions options;
  options.hold_files = true;
  SaveOptions keep_one;
  keep_one.keep_last = 1;
  const std::jthread training([&](const std::stop_token& is_done) {
    for (int64_t step = 3; !is_done.stop_requested(); ++step) {
      save(folder_, step_tag(step), comm::Group(),
           {whole_of("w", weight(step)), whole_of("a", at::full({4}, static_cast<double>(step)))}, {{"serial", step}},
           {}, keep_one);
    }
  });
  int64_t last = 0;
  for (int i = 0; i < 30; ++i) {
    const Checkpoint opened = Checkpoint::open(folder_, "", options);
    while (fs::exists(opened.folder())) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(at::equal(opened.read("w"), weight(opened.step())));
    EXPECT_GE(opened.step(), last);
    last = opened.step();
  }
}

TEST_F(CheckpointDamageTest, ALatestThatIsWrittenAMomentLaterIsNoReasonToWarn) {
  put_content(folder_ / "latest", "global_step1\n");
  fs::last_write_time(folder_ / "latest",
                      fs::last_write_time(folder_ / "global_step2" / "manifest.json") - std::chrono::milliseconds(1));
  std::thread save([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    write_file_atomically(folder_ / "latest", "global_step2\n");
  });
  EXPECT_EQ(loaded_step(), 2);
  save.join();
  EXPECT_EQ(warning_, "");
}

// A run that took it for an empty one would start anew in its place. Root may read all: the test is nobody meanwhile.
TEST_F(CheckpointDamageTest, AFolderThatMayNotBeReadIsNotTakenForAnEmptyOne) {
  for (const auto& [mode, path] :
       {std::pair(0, folder_), std::pair(0, folder_ / "global_step1"), std::pair(0111, folder_)}) {
    fs::permissions(folder_, static_cast<fs::perms>(mode));
    ASSERT_TRUE(::geteuid() != 0 || ::seteuid(65534) == 0);
    EXPECT_TRUE(fs::exists(folder_)) << "its parent is open";
    EXPECT_THAT(message_of<InputError>([&] { find_newest(path); }), HasSubstr("Permission denied"));
    EXPECT_THAT(message_of<InputError>([&] { Checkpoint::open(path); }), HasSubstr("Permission denied"));
    EXPECT_THAT(message_of<InputError>([&] { describe_json(path); }), HasSubstr("Permission denied"));
    ASSERT_EQ(::seteuid(::getuid()), 0);
  }
  fs::permissions(folder_, fs::perms::owner_all);
  EXPECT_EQ(find_newest(folder_)->filename(), "global_step2");
}

TEST_F(CheckpointDamageTest, WhenNothingIsWholeEveryProblemIsListed) {
  fs::remove(newest_files()[0]);
  fs::remove(folder_ / "global_step1" / "manifest.json");
  EXPECT_EQ(loaded_step(), -1);
  EXPECT_THAT(warning_,
              AllOf(HasSubstr("no intact checkpoint"), HasSubstr("global_step2/rank00000.safetensors is missing"),
                    HasSubstr("global_step1/manifest.json does not exist")));
  EXPECT_TRUE(find_newest(folder_).has_value()) << "damaged is not the same as nothing saved yet";
}

TEST_F(CheckpointDamageTest, WhatWasAskedForByNameIsNeverReplaced) {
  fs::remove(newest_files()[0]);
  EXPECT_THROW(Checkpoint::open(folder_ / "global_step2"), InputError);
  EXPECT_THROW(Checkpoint::open(folder_, "global_step2"), InputError);
}

TEST_F(CheckpointDamageTest, ASaveAfterDamageIsTheNewest) {
  put_content(newest_files()[2], "{}");
  const at::Tensor w = weight(3);
  save(folder_, "global_step3", comm::Group(), {whole_of("w", w), whole_of("a", at::full({4}, 3.0))}, {{"serial", 3}});
  EXPECT_EQ(loaded_step(), 3);
  EXPECT_EQ(warning_, "");
}

} // namespace
} // namespace trireme::checkpoint
