// Saves and loads have one bucket of a StateStore in memory at a time, and their files do not tell where the states
// were.
#include "small_run.h"

#include <trireme/base/descriptor.h>
#include <trireme/base/file.h>
#include <trireme/checkpoint/checkpoint.h>
#include <trireme/memory/offload/disk_store.h>

#include <tests/support/counting_store.h>
#include <tests/support/file_store.h>
#include <tests/support/run_ranks.h>
#include <tests/support/xfs_disk.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>
#include <random>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using test::run_ranks;
using testing::IsEmpty;

using MakeStore = std::function<std::unique_ptr<bucket::StateStore>()>;

struct StreamedRun {
  models::Gpt model;
  Initialized made;

  static models::GptOptions shape(int64_t hidden) {
    models::GptOptions options = small_gpt();
    options.layers = 4;
    options.hidden = hidden;
    return options;
  }
  StreamedRun(comm::World& world, int stage, precision::Type type, const MakeStore& store, int64_t hidden = 16)
      : model(shape(hidden)) {
    InitializeOptions options;
    options.model = model.ptr();
    options.loss = [gpt = model](const data::Batch& batch) mutable { return gpt->loss(batch.input(), batch.target()); };
    options.config = zero_config(stage, 1);
    options.config.precision.compute = type;
    options.training_data = std::make_shared<Counting>();
    options.state_store = store;
    made = initialize(world, options);
  }
  std::vector<double> train(int steps) {
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) {
      losses.push_back(made.engine->train_batch().item<double>());
    }
    return losses;
  }
};

// A rank's file without the random number of its save.
std::string file_of(const fs::path& checkpoint, int rank) {
  std::string content = read_file(checkpoint / concat("rank0000", rank, ".safetensors"));
  const std::string id = checkpoint::Checkpoint::open(checkpoint).manifest().about.save_id;
  const size_t at = content.find(id);
  EXPECT_NE(at, std::string::npos);
  return content.replace(at, id.size(), id.size(), '*');
}

TEST(StreamedCheckpointTest, OneBucketIsInMemoryAndTheFilesAreThoseOfStatesInMemory) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_streamed_", ::getpid());
  for (const int stage : {0, 1, 2, 3}) {
    for (const precision::Type type : {precision::Type::fp32, precision::Type::bf16}) {
      EXPECT_THAT(run_ranks(2,
                            [&](comm::World& world) {
                              std::vector<double> expected;
                              StreamedRun memory(world, stage, type, nullptr);
                              memory.train(2);
                              torch::manual_seed(7); // what is saved of the random numbers
                              memory.made.engine->save_checkpoint(folder / "memory");
                              const auto live = std::make_shared<test::LiveBytes>();
                              const MakeStore counting = [live] { return std::make_unique<test::CountingStore>(live); };
                              {
                                StreamedRun counted(world, stage, type, counting);
                                counted.train(2);
                                EXPECT_EQ(live->now, 0);
                                live->peak = live->acquired = 0;
                                torch::manual_seed(7);
                                counted.made.engine->save_checkpoint(folder / "counted");
                                EXPECT_EQ(live->now, 0);
                                EXPECT_GT(live->peak, 0);
                                EXPECT_LE(live->peak, live->largest_bucket) << "of " << live->kept;
                                EXPECT_LE(live->acquired, live->buckets) << "each is read once";
                                EXPECT_GT(live->kept, 3 * live->largest_bucket) << "else this shows nothing";
                              }
                              EXPECT_EQ(file_of(folder / "counted" / "global_step2", world.rank()),
                                        file_of(folder / "memory" / "global_step2", world.rank()));
                              *live = {};
                              StreamedRun resumed(world, stage, type, counting);
                              live->peak = live->acquired = 0;
                              ASSERT_TRUE(resumed.made.engine->load_checkpoint(folder / "memory"));
                              EXPECT_EQ(live->now, 0);
                              EXPECT_GT(live->peak, 0);
                              EXPECT_LE(live->peak, live->largest_bucket);
                              EXPECT_LE(live->acquired, live->buckets);
                              EXPECT_EQ(resumed.train(2), memory.train(2));
                            }),
                  IsEmpty())
          << "ZeRO stage " << stage << ", " << precision::type_name(type);
      fs::remove_all(folder);
    }
  }
}

// States in files of a file system that shares blocks: the checkpoint takes no room for them, and stays as it is when
// they are written again.
TEST(StreamedCheckpointTest, BlocksOfTheStoreAreShared) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_shared_", ::getpid());
  {
    test::XfsDisk disk(folder);
    if (!disk.is_mounted()) {
      fs::remove_all(folder);
      GTEST_SKIP() << test::XfsDisk::kNeeds;
    }
    for (const auto& [stage, type] : {std::pair{1, precision::Type::bf16}, {3, precision::Type::fp32}}) {
      EXPECT_THAT(
          run_ranks(2,
                    [&, stage = stage, type = type](comm::World& world) {
                      const MakeStore files = [&, made = 0]() mutable {
                        return std::make_unique<test::FileStore>(folder / concat("states", world.rank(), '.', made++));
                      };
                      StreamedRun run(world, stage, type, files, 256);
                      run.train(2);
                      world.group().barrier().wait();
                      const auto before = disk.free_bytes();
                      world.group().barrier().wait();
                      run.made.engine->save_checkpoint(folder / "saved");
                      const auto taken = static_cast<int64_t>(before - disk.free_bytes());
                      const int64_t parameters =
                          run.made.engine->num_parameters() * (type == precision::Type::fp32 ? 4 : 2);
                      EXPECT_LT(taken, parameters + run.made.optimizer->bytes())
                          << "half of the states, at most, and the parameters";
                      const std::vector<double> expected = run.train(2); // writes the states
                      StreamedRun resumed(world, stage, type, nullptr, 256);
                      ASSERT_TRUE(resumed.made.engine->load_checkpoint(folder / "saved"));
                      EXPECT_EQ(resumed.train(2), expected);
                    }),
          IsEmpty())
          << "ZeRO stage " << stage << ", " << precision::type_name(type);
      fs::remove_all(folder / "saved");
    }
  }
  fs::remove_all(folder);
}

/// Changes a byte in each block of this process's open files in `folder` that have no name any more.
void damage_files(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    if (error || !target.starts_with(folder.string()) || !target.ends_with(" (deleted)")) {
      continue;
    }
    const Descriptor file(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    const auto bytes = static_cast<off_t>(fs::file_size(entry.path()));
    for (off_t at = 0; at < bytes; at += 4096) {
      unsigned char byte = 0;
      EXPECT_EQ(::pread(file.get(), &byte, 1, at), 1);
      byte ^= 1;
      EXPECT_EQ(::pwrite(file.get(), &byte, 1, at), 1);
    }
    EXPECT_EQ(::fsync(file.get()), 0);
  }
}

// A save that shares blocks reads them as a step would: what the disk has changed ends it.
TEST(StreamedCheckpointTest, WhatTheDiskHasChangedIsNotSaved) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_changed_", ::getpid());
  {
    test::XfsDisk disk(folder);
    if (!disk.is_mounted()) {
      fs::remove_all(folder);
      GTEST_SKIP() << test::XfsDisk::kNeeds;
    }
    on_ranks(1, [&](comm::World& world) {
      const auto traffic = std::make_shared<offload::Traffic>();
      const auto rank_folder = offload::RankFolder::open(folder / "nvme", 0);
      const MakeStore files = [&] {
        return std::make_unique<offload::DiskStore>(
            rank_folder, offload::DiskOptions{.kind = "optimizer states", .buffers = 3}, traffic);
      };
      StreamedRun run(world, 1, precision::Type::bf16, files, 256);
      run.train(2);
      run.made.engine->save_checkpoint(folder / "saved");
      run.train(1);
      damage_files(folder / "nvme");
      std::string error = "saved";
      try {
        run.made.engine->save_checkpoint(folder / "saved");
      } catch (const Error& refusal) {
        error = refusal.what();
      }
      EXPECT_THAT(error,
                  testing::AllOf(testing::StartsWith("[offload] "), testing::HasSubstr("the disk has changed bucket "),
                                 testing::HasSubstr("load the last checkpoint")));
      EXPECT_EQ(checkpoint::Checkpoint::open(folder / "saved").step(), 2);
      EXPECT_FALSE(fs::exists(folder / "saved" / "global_step3"));
    });
  }
  fs::remove_all(folder);
}

// One rank's store fails: nobody has a checkpoint, all are told, and the next save works.
TEST(StreamedCheckpointTest, AStoreThatFailsEndsTheSaveOnEveryRank) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_failing_", ::getpid());
  class Fails : public test::CountingStore {
   public:
    Fails(const bool& fails) : CountingStore(std::make_shared<test::LiveBytes>()), fails_(fails) {}
    const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override {
      if (fails_ && bucket == 2) {
        throw Error("store", "the disk is gone");
      }
      return CountingStore::acquire(buffer, bucket);
    }

   private:
    const bool& fails_;
  };
  on_ranks(2, [&](comm::World& world) {
    bool fails = false;
    StreamedRun run(world, 1, precision::Type::bf16, [&] { return std::make_unique<Fails>(fails); });
    run.train(1);
    run.made.engine->save_checkpoint(folder);
    run.train(1);
    fails = world.rank() == 1;
    try {
      run.made.engine->save_checkpoint(folder);
      ADD_FAILURE() << "saved";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("[store] rank 1: the disk is gone"));
    }
    EXPECT_EQ(checkpoint::Checkpoint::open(folder).step(), 1);
    fails = false;
    run.made.engine->save_checkpoint(folder);
    EXPECT_EQ(checkpoint::Checkpoint::open(folder).step(), 2);
  });
  fs::remove_all(folder);
}

// A run whose states are in files is killed while it trains and saves; whatever it had saved goes on as if nothing had
// happened.
TEST(StreamedCheckpointTest, KilledAtRandomMomentsWhatWasSavedGoesOnAsIfNot) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_killed_", ::getpid());
  constexpr int kSteps = 8;
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  on_ranks(1, [&](comm::World& world) {
    StreamedRun run(world, 1, precision::Type::bf16, nullptr);
    const std::vector<double> losses = run.train(kSteps);
    EXPECT_EQ(::write(pipe_ends[1], losses.data(), kSteps * sizeof(double)),
              static_cast<ssize_t>(kSteps * sizeof(double)));
  });
  std::vector<double> expected(kSteps);
  ASSERT_EQ(::read(pipe_ends[0], expected.data(), kSteps * sizeof(double)),
            static_cast<ssize_t>(kSteps * sizeof(double)));
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  std::mt19937 random(5);
  int64_t done = 0;
  int kills = 0;
  for (int trial = 0; trial < 60 && done < kSteps; ++trial) {
    const int calls = 1 + static_cast<int>(random() % 40); // of a bucket of the states, during saves
    int64_t found = done;
    const std::vector<std::string> ends = run_ranks(1, [&](comm::World& world) {
      class Deadly : public test::FileStore {
       public:
        Deadly(fs::path path, int calls) : FileStore(std::move(path)), calls_(calls) {}
        const std::vector<at::Tensor>& acquire(int64_t buffer, int64_t bucket) override {
          if (is_saving && --calls_ == 0) {
            ::kill(::getpid(), SIGKILL);
          }
          return FileStore::acquire(buffer, bucket);
        }
        bool is_saving = false;

       private:
        int calls_;
      };
      Deadly* store = nullptr;
      StreamedRun run(world, 1, precision::Type::bf16, [&] {
        auto made = std::make_unique<Deadly>(folder / "states", calls);
        store = made.get();
        return made;
      });
      if (done > 0) {
        ASSERT_TRUE(run.made.engine->load_checkpoint(folder / "saved"));
      }
      for (int64_t step = run.made.engine->global_steps(); step < kSteps; ++step) {
        EXPECT_EQ(run.train(1).front(), expected[static_cast<size_t>(step)]) << "step " << step;
        store->is_saving = true;
        run.made.engine->save_checkpoint(folder / "saved");
        store->is_saving = false;
      }
    });
    for (const std::string& end : ends) {
      ++kills;
      EXPECT_THAT(end, testing::HasSubstr("signal")) << "it ended otherwise than by the kill";
    }
    if (const auto newest = checkpoint::find_newest(folder / "saved")) {
      found = checkpoint::Checkpoint::open(*newest).step();
    }
    EXPECT_GE(found, done) << "a checkpoint is lost";
    done = found;
  }
  EXPECT_EQ(done, kSteps);
  EXPECT_GE(kills, 3) << "else this shows little";
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::engine
