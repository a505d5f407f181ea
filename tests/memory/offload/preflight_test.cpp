// What is said of a disk before ranks use it, and what is refused.
#include <tests/support/other_user.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/text.h>
#include <trireme/memory/offload/preflight.h>

#include <gmock/gmock.h>

#include <unistd.h>

namespace trireme::offload {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

Options nvme(const std::string& states = "/a", const std::string& parameters = "") {
  Options options;
  options.optimizer.place = Place::nvme;
  options.optimizer.nvme_path = states;
  if (!parameters.empty()) {
    options.parameters.place = Place::nvme;
    options.parameters.nvme_path = parameters;
  }
  return options;
}

TEST(PreflightTest, FoldersAddUpWhatTheirRanksHave) {
  std::vector<FolderUse> folders;
  add_use(folders, nvme("/a", "/b"), {100, 10, 20, 7}, {50, 5, 6, 1}, 2); // a stage of two ranks
  add_use(folders, nvme("/a", "/b"), {30, 3, 4, 0}, {0, 0, 0, 0}, 3);
  ASSERT_EQ(folders.size(), 2u);
  EXPECT_EQ(std::tuple(folders[0].folder, folders[0].ranks, folders[0].state_bytes, folders[0].parameter_bytes),
            std::tuple(fs::path("/a"), 5, 290, 0));
  EXPECT_EQ(std::tuple(folders[0].read_bytes, folders[0].write_bytes, folders[0].start_bytes), std::tuple(29, 52, 14));
  EXPECT_EQ(std::tuple(folders[1].folder, folders[1].ranks, folders[1].parameter_bytes, folders[1].bytes()),
            std::tuple(fs::path("/b"), 2, 100, 100));
  std::vector<FolderUse> one;
  add_use(one, nvme("/a", "/a"), {100, 10, 20, 0}, {50, 5, 6, 0}, 2);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(std::tuple(one[0].ranks, one[0].bytes(), one[0].read_bytes), std::tuple(2, 300, 30));
  add_use(one, nvme("/a", "/a"), {100, 10, 20, 0, 0, 0, /*state_read_bytes=*/8, /*state_write_bytes=*/9}, {}, 3);
  EXPECT_EQ(std::tuple(one[0].read_bytes, one[0].state_read_bytes, one[0].state_write_bytes), std::tuple(60, 24, 27));
  std::vector<FolderUse> none;
  add_use(none, Options(), {100, 10, 20, 0}, {50, 5, 6, 0}, 2);
  EXPECT_THAT(none, IsEmpty());
}

// Neither files of activations nor others have room: both do without.
TEST(PreflightTest, ActivationsAreRecomputedWhereTheRestStaysInMemory) {
  FolderUse use;
  use.folder = "/disk";
  use.ranks = 2;
  use.state_bytes = 8'000'000;
  use.activation_bytes = 2'000'000;
  const auto next = [&](int64_t memory) { return refusal(use, nvme("/disk"), {200'000, memory, false}).next; };
  EXPECT_THAT(next(8'000'000), AllOf(HasSubstr("Fits without files, with \"activation_checkpointing\": {\"policy\": "
                                               "\"recompute\"} and \"device\": \"cpu\""),
                                     HasSubstr("8.00 MB stay in memory")));
  EXPECT_THAT(next(7'999'999), HasSubstr("cannot take it either"));
}

// The nearest first: parameters in memory, states in memory, no files, fewer of the states.
TEST(PreflightTest, ARefusalNamesTheNearestThatFits) {
  const int64_t gb = 1'000'000'000;
  const FolderUse both{"/disk", 4, 60 * gb, 20 * gb, 0, 0, 0};
  const auto next = [&](const FolderUse& use, int64_t free, int64_t memory, bool on_device = false) {
    const Refusal no = refusal(use, nvme("/disk", "/disk"), {free * gb, memory * gb, on_device});
    EXPECT_EQ(no.what.empty(), no.next.empty());
    return no.next;
  };
  EXPECT_EQ(next(both, 80, 0), "") << "just enough";
  EXPECT_THAT(refusal(both, nvme("/disk", "/disk"), {70 * gb, 0, false}).what,
              HasSubstr("files of 4 ranks need 80.0 GB in /disk, which has 70.0 GB free: 10.0 GB too little"));
  EXPECT_THAT(next(both, 70, 25), HasSubstr("Fits with \"offload_param\": {\"device\": \"cpu\"}: 20.0 GB of parameters "
                                            "stay in memory, which has 25.0 GB free."));
  EXPECT_THAT(
      next(both, 30, 65),
      HasSubstr(
          "Fits with \"offload_optimizer\": {\"device\": \"cpu\"}: 60.0 GB of masters and states stay in memory"));
  EXPECT_THAT(next(both, 10, 90), HasSubstr("Fits without files, with \"device\": \"cpu\""));
  EXPECT_THAT(
      next(both, 50, 10, true),
      HasSubstr(
          "Fits with \"ratio\": 0.5 in offload_optimizer, if devices have room for the rest of the states, 30.0 GB."));
  EXPECT_THAT(next(both, 50, 10), HasSubstr("Memory (10.0 GB free) cannot take it either"))
      << "a rank on the CPU has no device beside";
  // Parameters are on another disk, or nowhere.
  const FolderUse states{"/disk", 1, 60 * gb, 0, 0, 0, 0};
  EXPECT_THAT(
      next(states, 50, 61),
      HasSubstr(
          "Fits with \"offload_optimizer\": {\"device\": \"cpu\"}: 60.0 GB of masters and states stay in memory"));
  EXPECT_THAT(next({"/disk", 1, 0, 60 * gb, 0, 0, 0}, 50, 61),
              HasSubstr("Fits with \"offload_param\": {\"device\": \"cpu\"}: 60.0 GB of parameters stay in memory"));
  Options alone = nvme("/disk", "");
  alone.parameters.place = Place::device;
  EXPECT_THAT(refusal(states, alone, {50 * gb, 61 * gb, false}).next, HasSubstr("Fits without files"));
  EXPECT_THAT(next({"/disk", 1, 60 * gb, 0, 0, 0, 0}, 50, 59), HasSubstr("use a folder with more room"));
}

// Where nobody knows what memory is free, nothing is said of it.
TEST(PreflightTest, UnknownMemoryIsNotProposed) {
  const FolderUse use{"/disk", 1, 60, 20, 0, 0, 0, 0, 0, /*activation_bytes=*/10};
  const auto next = [&](int64_t free, bool on_device) {
    return refusal(use, nvme("/disk", "/disk"), {free, std::nullopt, on_device}).next;
  };
  EXPECT_EQ(next(60, false), "Use a folder with more room, more hosts with a higher ZeRO stage, or a smaller model.");
  EXPECT_THAT(next(80, false), HasSubstr("Fits with \"activation_checkpointing\""));
  EXPECT_THAT(next(60, true), HasSubstr("Fits with \"ratio\""));
}

// At the start, while modules are built, parameters are there twice; masters and states come later, activations later
// still.
TEST(PreflightTest, TheStartAndTheStepsBothNeedRoom) {
  std::vector<FolderUse> folders;
  const KindUse states{120, 0, 0, 0, /*gradient_bytes=*/40, 0};
  const KindUse parameters{40, 0, 0, 0, 0, /*building_bytes=*/44};
  add_use(folders, nvme("/a", "/b"), states, parameters, 2, {"/a", 7, 14});
  ASSERT_EQ(folders.size(), 2u);
  EXPECT_EQ(std::tuple(folders[0].ranks, folders[0].bytes(), folders[0].bytes_at_start(), folders[0].activation_bytes),
            std::tuple(2, 2 * 127, 2 * 40, 14));
  EXPECT_EQ(std::tuple(folders[0].read_bytes, folders[0].write_bytes), std::tuple(28, 28)) << "of activations";
  EXPECT_EQ(std::tuple(folders[1].bytes(), folders[1].bytes_at_start(), folders[1].most_bytes()),
            std::tuple(80, 168, 168));
  std::vector<FolderUse> none_stay; // max_in_cpu keeps all of them, but they are built in files
  add_use(none_stay, nvme("/a", "/b"), {}, {0, 0, 0, 0, 0, 44}, 1);
  ASSERT_EQ(none_stay.size(), 1u);
  EXPECT_EQ(none_stay[0].most_bytes(), 44);

  const auto what = [&](const FolderUse& use, const Room& room) { return refusal(use, nvme("/a", "/b"), room).what; };
  EXPECT_EQ(what(folders[1], {168, 0, false}), "");
  EXPECT_THAT(what(folders[1], {167, 0, false}),
              HasSubstr("files of 2 ranks need 168 B while the model is built, its parameters twice, in /b, which has "
                        "167 B free: 1 B too little"));
  EXPECT_THAT(what(folders[1], {79, 0, false, 1000}), HasSubstr("need 80 B in /b"));
  EXPECT_EQ(what(folders[1], {80, 0, false, 168}), "") << "the other folder of the disk takes its room later";
  EXPECT_EQ(what(folders[0], {254, 0, false}), "");
  EXPECT_THAT(what(folders[0], {253, 0, false}), HasSubstr("need 254 B in /a"));
}

TEST(PreflightTest, ARefusalKnowsActivationsAndGradients) {
  FolderUse use{"/disk", 1, 120, 40, 0, 0, 0, /*gradient_bytes=*/40, /*building_bytes=*/40, /*activation_bytes=*/30};
  const auto next = [&](int64_t free, int64_t memory) {
    return refusal(use, nvme("/disk", "/disk"), {free, memory, false}).next;
  };
  EXPECT_EQ(next(190, 0), "");
  EXPECT_THAT(
      next(189, 0),
      HasSubstr(
          "Fits with \"activation_checkpointing\": {\"policy\": \"recompute\"}: 30 B of activations need no files."));
  EXPECT_THAT(next(159, 80), HasSubstr("Fits with \"offload_param\": {\"device\": \"cpu\"}: 40 B of parameters and 40 "
                                       "B of gradients stay in memory"));
  EXPECT_THAT(next(159, 79), HasSubstr("Memory (79 B free) cannot take it either")) << "gradients go with parameters";
  EXPECT_THAT(
      next(109, 120),
      HasSubstr("Fits with \"offload_optimizer\": {\"device\": \"cpu\"}: 120 B of masters, states and gradients"));
  EXPECT_THAT(next(79, 160), HasSubstr("Fits without files but those of activations"));
  EXPECT_THAT(next(29, 160), HasSubstr("Fits without files, with \"activation_checkpointing\": {\"policy\": "
                                       "\"recompute\"} and \"device\": \"cpu\": 160 B stay in memory"));
  EXPECT_THAT(next(29, 159), HasSubstr("Memory (159 B free) cannot take it either"));
}

// The share that is named does fit, and a hundredth more would not.
TEST(PreflightTest, TheRatioIsTheLargestThatFits) {
  const FolderUse use{"/disk", 1, 1'000'000, 0, 0, 0, 0};
  for (const int64_t free : {9'999, 10'000, 345'678, 999'999}) {
    const std::string next = refusal(use, nvme("/disk"), {free, 0, true}).next;
    const size_t at = next.find("\"ratio\": ");
    if (free < 10'000) {
      EXPECT_EQ(at, std::string::npos) << next;
      continue;
    }
    ASSERT_NE(at, std::string::npos) << next;
    const double ratio = std::stod(next.substr(at + 9));
    EXPECT_LE(ratio * 1e6, static_cast<double>(free) + 1e-6);
    EXPECT_GT((ratio + 0.01) * 1e6, static_cast<double>(free));
  }
}

TEST(PreflightTest, AFileSystemWithoutFilesIsNotAFullDisk) {
  const FolderUse use{"/proc/moved", 1, 120, 0, 0, 0, 0};
  try {
    check_room({use}, nvme("/proc/moved"), 0, false);
    ADD_FAILURE() << "there is room";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nvme_path /proc/moved is on a file system that takes no files (proc)"));
  }
}

TEST(PreflightTest, AFolderThatIsToBeMadeIsJudgedByTheOneAboveIt) {
  const ScratchFolder scratch(make_scratch_folder("trireme_preflight"));
  EXPECT_EQ(existing_folder(scratch.path), fs::absolute(scratch.path));
  EXPECT_EQ(existing_folder(scratch.path / "x/y/../z"), fs::absolute(scratch.path));
  write_file_atomically(scratch.path / "file", "a", 0644);
  const auto refused = [](const fs::path& folder) -> std::string {
    try {
      existing_folder(folder);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused(scratch.path / "file"), HasSubstr("file is not a folder"));
  EXPECT_THAT(refused(scratch.path / "file/below"),
              AllOf(HasSubstr("below, whose nearest existing parent"), HasSubstr("is not a folder")));
  const test::OtherUser user; // root may write everywhere
  if (!user.exists()) {
    GTEST_SKIP() << "no other user can be had";
  }
  const ScratchFolder closed(make_scratch_folder("trireme_preflight"));
  fs::permissions(closed.path, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(refused(closed.path / "x"), AllOf(HasSubstr("may not be written to"), HasSubstr("Permission denied")));
}

TEST(PreflightTest, JudgesWhatTheDiskShowed) {
  FolderUse use{"/disk", 2, 4'000'000'000, 0, 4'000'000'000, 4'000'000'000, 4'000'000'000};
  use.state_read_bytes = 1'000'000'000; // the rest moves beside forward and backward
  use.state_write_bytes = 3'000'000'000;
  aio::Probe disk;
  disk.direct = true;
  disk.alignment = 512;
  disk.free_bytes = 80'000'000'000;
  disk.read_bytes_per_s = 2e9;
  disk.write_bytes_per_s = 1e9;
  disk.engine = "io_uring";
  disk.filesystem = "ext4";
  Options options = nvme("/disk");
  const Preflight found = judge(use, options, disk);
  EXPECT_DOUBLE_EQ(found.read_seconds, 2);
  EXPECT_DOUBLE_EQ(found.write_seconds, 4);
  EXPECT_THAT(found.lines, testing::ElementsAre(
                               "/disk (ext4): files of 2 ranks need 4.00 GB, 80.0 GB are free",
                               "io_uring, direct transfers (aligned to 512 bytes), 1.05 MB a request, 8 at a time: "
                               "reads 2.00 GB/s, writes 1.00 GB/s",
                               "a step reads 4.00 GB in 2.00 s and writes 4.00 GB in 4.00 s: 6.00 s of the disk's time",
                               "a step takes at least 6.00 s, of which 3.50 s come on top of its computation because "
                               "\"pipeline_read\" and \"pipeline_write\" are off",
                               "before the first step 4.00 GB are written in 4.00 s"));
  EXPECT_DOUBLE_EQ(found.waited_seconds, 3.5);
  options.optimizer.pipeline_read = true;
  EXPECT_THAT(judge(use, options, disk).lines, Contains("a step takes at least 6.00 s, of which 3.00 s come on top of "
                                                        "its computation because \"pipeline_write\" is off"));
  options.optimizer.pipeline_write = true;
  EXPECT_THAT(judge(use, options, disk).lines, Contains("a step takes at least 6.00 s"));
  EXPECT_EQ(judge(use, options, disk).waited_seconds, 0);
  options.optimizer.pipeline_read = options.optimizer.pipeline_write = false;
  use.state_read_bytes = use.state_write_bytes = 0;
  EXPECT_THAT(judge(use, options, disk).lines, Contains("a step takes at least 6.00 s"))
      << "nothing of states moves in this folder";
  disk.engine = "threads";
  EXPECT_THAT(
      judge(use, options, disk).lines,
      Contains(
          "1 thread, direct transfers (aligned to 512 bytes), 1.05 MB a request: reads 2.00 GB/s, writes 1.00 GB/s"));
  options.aio.threads = 3;
  EXPECT_THAT(judge(use, options, disk).lines, Contains(testing::StartsWith("3 threads, direct transfers")));
  disk.direct = false;
  EXPECT_THAT(judge(use, options, disk).lines, AllOf(Contains(HasSubstr("no direct transfers here")),
                                                     Contains(HasSubstr("take memory of the system's cache"))));
}

TEST(PreflightTest, TheProbeIsLargeEnoughAndFits) {
  Options options = nvme();
  const auto bytes = [&](int64_t needed, int64_t free) {
    return probe_bytes({"/a", 1, needed, 0, 0, 0, 0}, options, free);
  };
  const int64_t mib = 1 << 20;
  EXPECT_EQ(bytes(int64_t{1} << 40, int64_t{1} << 40), 256 * mib);
  EXPECT_EQ(bytes(1, int64_t{1} << 40), 32 * mib) << "four times the queue";
  EXPECT_EQ(bytes(int64_t{1} << 40, 20 * mib), 10 * mib);
  EXPECT_EQ(bytes(int64_t{1} << 40, 0), mib) << "a block at least";
  options.aio.queue_depth = 32;
  EXPECT_EQ(bytes(1, int64_t{1} << 40), 128 * mib);
}

// The whole of it on the disk of this folder: measured, judged, and nothing left.
TEST(PreflightTest, MeasuresTheFolderItself) {
  const ScratchFolder scratch(make_scratch_folder("trireme_preflight"));
  Options options = nvme(scratch.path / "to/be/made");
  options.aio.block_size = 64 << 10;
  options.aio.queue_depth = 4;
  std::vector<FolderUse> folders;
  add_use(folders, options, {5'000'000, 5'000'000, 5'000'000, 0}, {}, 1);
  check_room(folders, options, 0, false);
  const std::vector<Preflight> found = preflight(folders, options);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_GT(found[0].disk.read_bytes_per_s, 0);
  EXPECT_GT(found[0].disk.write_bytes_per_s, 0);
  EXPECT_DOUBLE_EQ(found[0].read_seconds, 5e6 / found[0].disk.read_bytes_per_s);
  EXPECT_THAT(found[0].lines, Contains(HasSubstr(std::string_view(found[0].disk.engine) == "threads"
                                                     ? "65.5 kB a request: reads"
                                                     : "65.5 kB a request, 4 at a time")));
  EXPECT_TRUE(fs::is_empty(scratch.path));
  folders[0].state_bytes = int64_t{1} << 60;
  try {
    check_room(folders, options, 1000, false);
    ADD_FAILURE() << "a disk of this size?";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("files of 1 rank need 1153 PB"), HasSubstr("to/be/made"),
                                    HasSubstr("Memory (1.00 kB free) cannot take it either")));
  }
}

} // namespace
} // namespace trireme::offload
