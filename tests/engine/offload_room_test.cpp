// A user's own program, of which nobody knows before initialize() what it will have in files: a disk that is too small
// is refused there, with what fits.
#include "layered_run.h"

#include <trireme/base/file.h>
#include <trireme/base/log.h>
#include <trireme/base/text.h>
#include <trireme/plan/estimate/model.h>

#include <tests/support/run_ranks.h>
#include <tests/support/small_disk.h>

#include <gmock/gmock.h>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using offload::Place;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

models::GptOptions wide_gpt() {
  models::GptOptions options = small_gpt();
  options.layers = 3;
  options.hidden = 128;
  return options;
}

/// "trained", or what initialize() says.
std::string outcome(comm::World& world, const offload::Options& offload, int stage, optim::StateType states) {
  config::EngineConfig config = zero_config(stage);
  config.optimizer->state_type = states;
  config.zero.param_persistence_threshold = 0;
  config.offload = offload;
  try {
    LayeredRun run(world, config, 1, wide_gpt());
    run.step();
    run.step();
  } catch (const InputError& error) {
    return error.what();
  }
  return "trained";
}

int64_t parameters() {
  return estimate::gpt(wide_gpt(), {.layer_list = true}).parameters();
}

offload::Options in_files(const fs::path& states, const fs::path& parameters) {
  offload::Options options;
  options.optimizer.place = states.empty() ? Place::device : Place::nvme;
  options.optimizer.nvme_path = states;
  options.parameters.place = parameters.empty() ? Place::device : Place::nvme;
  options.parameters.nvme_path = parameters;
  options.parameters.max_in_cpu = 0;
  options.optimizer.buffer_count = options.parameters.buffer_count = 3;
  return options;
}

/// What rank 0 of two says of offload while it starts.
std::vector<std::string> said(const offload::Options& offload, const fs::path& folder) {
  const fs::path file = folder / "said.txt";
  on_ranks(2, [&](comm::World& world) {
    std::string lines;
    log::set_sink([&](const std::string& line) { lines += line.find("offload") != std::string::npos ? line : ""; });
    outcome(world, offload, 3, optim::StateType::fp32);
    log::set_sink(nullptr);
    if (world.rank() == 0) {
      write_file_atomically(file, lines, 0600);
    }
  });
  std::vector<std::string> lines = split(read_file(file), '\n');
  lines.pop_back();
  return lines;
}

class OffloadRoomTest : public testing::Test {
 protected:
  /// Of two ranks, with so many bytes for each parameter of the model.
  void expect(double bytes_each, const std::function<offload::Options(const fs::path& disk)>& offload, int stage,
              const testing::Matcher<std::string>& matcher, optim::StateType states = optim::StateType::fp32) {
    const test::SmallDisk disk(scratch_.path / "disk",
                               static_cast<int64_t>(bytes_each * static_cast<double>(parameters())));
    if (!disk.exists()) {
      GTEST_SKIP() << "needs root to mount a small file system";
    }
    EXPECT_THAT(run_ranks(2,
                          [&](comm::World& world) {
                            EXPECT_THAT(outcome(world, offload(disk.folder()), stage, states), matcher);
                          }),
                IsEmpty())
        << bytes_each;
    EXPECT_TRUE(fs::is_empty(disk.folder()) || fs::is_empty(disk.folder() / "nvme"));
  }

  const ScratchFolder scratch_ = ScratchFolder(make_scratch_folder("trireme_room"));
};

// In fp32: 8 bytes of each.
TEST_F(OffloadRoomTest, StatesOfAllRanksAreAddedUp) {
  const auto states = [](const fs::path& disk) { return in_files(disk / "nvme", ""); };
  expect(7.9, states, 1,
         AllOf(HasSubstr("files of 2 ranks need "), HasSubstr("/disk/nvme, which has "),
               HasSubstr("Fits without files, with \"device\": \"cpu\"")));
  expect(8.5, states, 1, "trained");
}

// A byte for each of two states, and a scale of 4 bytes for 256 of them, which fill whole blocks of 4096 bytes in each
// bucket: here a byte of each.
TEST_F(OffloadRoomTest, ScalesOfEightBitStatesAreCounted) {
  const auto states = [](const fs::path& disk) { return in_files(disk / "nvme", ""); };
  expect(3, states, 1, HasSubstr("files of 2 ranks need "), optim::StateType::int8);
  expect(3.3, states, 1, "trained", optim::StateType::int8);
}

// 4 bytes while layers are built, beside 8 of parameters and gradients, or 16 of all.
TEST_F(OffloadRoomTest, ShardsAreCheckedBeforeTheyAreMadeAndStatesAfterThem) {
  const auto all = [](const fs::path& disk) { return in_files(disk / "nvme", disk / "nvme"); };
  expect(11.5, all, 3, AllOf(HasSubstr("files of 2 ranks need "), HasSubstr("of gradients stay in memory")));
  expect(14, all, 3,
         AllOf(HasSubstr("files of 2 ranks need "), HasSubstr("Fits with \"offload_optimizer\": {\"device\": \"cpu\"}"),
               HasSubstr("of masters and states stay in memory")));
  expect(17, all, 3, "trained");
}

TEST_F(OffloadRoomTest, ParametersAloneAreThereTwice) {
  const auto parameters = [](const fs::path& disk) { return in_files("", disk / "nvme"); };
  expect(7.5, parameters, 3, HasSubstr("files of 2 ranks need "));
  expect(8.5, parameters, 3, "trained");
}

// DeepSpeed's defaults keep parameters in memory, and buffers may hold all that is in files: what is where, how many
// bytes, and which key keeps it.
TEST_F(OffloadRoomTest, SaysWhatIsWhereAndWhatStays) {
  const fs::path folder = scratch_.path / "nvme";
  offload::Options options = in_files(folder, folder);
  options.parameters.max_in_cpu = offload::ParameterOptions().max_in_cpu;
  EXPECT_THAT(
      said(options, scratch_.path),
      ElementsAre(
          AllOf(HasSubstr("offload, a rank: masters and optimizer states "),
                HasSubstr(concat(" in files in ", folder.string())), HasSubstr(" of buffers in memory); gradients "),
                HasSubstr("; parameters "), HasSubstr(" in memory, none in files")),
          AllOf(
              HasSubstr("offload_param to \"nvme\": all "),
              HasSubstr(
                  "MB, stay in memory, because max_in_cpu is 1000000000. To have them in files: \"max_in_cpu\": 0"))));
  options.parameters.max_in_cpu = 0;
  EXPECT_THAT(said(options, scratch_.path),
              ElementsAre(AllOf(HasSubstr("; parameters "), Not(HasSubstr("none in files")))));
  options.optimizer.buffer_count = 100;
  EXPECT_THAT(
      said(options, scratch_.path),
      ElementsAre(
          HasSubstr("offload, a rank: "),
          AllOf(HasSubstr("offload_optimizer to \"nvme\" saves no memory: its buffers (buffer_count) hold all "),
                HasSubstr("\"buffer_count\": 3"))));
}

} // namespace
} // namespace trireme::engine
