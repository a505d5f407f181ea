#include "hand_made.h"

#include <tests/support/run_ranks.h>
#include <trireme/base/run_token.h>
#include <trireme/checkpoint/folder.h>

#include <nlohmann/json.hpp>

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <set>
#include <string>
#include <thread>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;
using test::on_ranks;
using test::run_ranks;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class SaveRanksTest : public FolderTest {
 protected:
  static at::Tensor weight(int64_t step) { return at::arange(101, at::kFloat) + static_cast<double>(1000 * step); }
  // Uneven: rank r of n ends at 101 (r + 1)^2 / n^2.
  static TensorShard part(int64_t step, int rank, int size) {
    const auto cut = [&](int64_t r) { return 101 * r * r / (size * size); };
    return part_of("w", weight(step), cut(rank), cut(rank + 1));
  }
  // Rank 0 also holds what is the same everywhere.
  void save_step(int64_t step, const comm::Group& group) const {
    std::vector<TensorShard> mine{part(step, group.rank(), group.size())};
    if (group.rank() == 0) {
      mine.push_back(whole_of("norm", at::full({3}, static_cast<double>(step)), "buffer"));
    }
    save(folder_, step_tag(step), group, mine, {{"step", step}, {"from", group.rank()}}, {{"rank", group.rank()}});
  }
  static void expect_step(const Checkpoint& opened, int64_t step) {
    EXPECT_EQ(opened.step(), step);
    EXPECT_TRUE(at::equal(opened.read("w"), weight(step)));
    EXPECT_TRUE(at::equal(opened.read("norm"), at::full({3}, static_cast<double>(step))));
    EXPECT_EQ(opened.state().at("step"), step);
    EXPECT_EQ(opened.state().at("from"), 0) << "rank 0's state counts";
  }
  void damage(const fs::path& file) const {
    std::string content = content_of(file);
    content[content.size() - 2] ^= 4;
    put_content(file, content);
  }
};

class SaveRanksOfSizeTest : public SaveRanksTest, public testing::WithParamInterface<std::pair<int, int>> {};

TEST_P(SaveRanksOfSizeTest, AnyNumberOfRanksReadsWhatAnyNumberSaved) {
  const auto [writers, readers] = GetParam();
  ASSERT_THAT(run_ranks(writers, [&](comm::World& world) { save_step(5, world.group()); }), IsEmpty());
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step5", "latest"));
  EXPECT_EQ(names_in(folder_ / "global_step5").size(), static_cast<size_t>(writers) + 1);
  ASSERT_THAT(
      run_ranks(readers,
                [&, writers = writers](comm::World& world) {
                  const Checkpoint opened = Checkpoint::open(folder_, "", world.group());
                  expect_step(opened, 5);
                  EXPECT_EQ(opened.world_size(), writers);
                  for (int rank = 0; rank < writers; ++rank) {
                    EXPECT_EQ(opened.rank_state(rank).at("rank"), rank);
                  }
                  const TensorShard mine = part(5, world.rank(), world.size());
                  EXPECT_TRUE(at::equal(opened.read_range("w", mine.begin, mine.begin + mine.data.numel()), mine.data));
                }),
      IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(WritersReaders, SaveRanksOfSizeTest,
                         testing::Values(std::pair{1, 3}, std::pair{2, 1}, std::pair{2, 4}, std::pair{3, 2},
                                         std::pair{4, 3}),
                         [](const auto& info) { return concat(info.param.first, "_", info.param.second); });

TEST_F(SaveRanksTest, ARankWithoutTensorsWritesNoFile) {
  ASSERT_THAT(run_ranks(3,
                        [&](comm::World& world) {
                          const std::vector<TensorShard> mine =
                              world.rank() == 1
                                  ? std::vector<TensorShard>{whole_of("w", weight(1)), whole_of("norm", at::ones({3}))}
                                  : std::vector<TensorShard>{};
                          save(folder_, "global_step1", world.group(), mine, {{"step", 1}, {"from", world.rank()}},
                               {{"rank", world.rank()}});
                        }),
              IsEmpty());
  EXPECT_THAT(names_in(folder_ / "global_step1"), UnorderedElementsAre("rank00001.safetensors", "manifest.json"));
  const Checkpoint opened = Checkpoint::open(folder_);
  expect_step(opened, 1);
  EXPECT_EQ(opened.rank_state(2).at("rank"), 2);
}

TEST_F(SaveRanksTest, AFailureOfOneRankIsTheSameErrorOnAllAndChangesNothing) {
  ASSERT_THAT(run_ranks(3,
                        [&](comm::World& world) {
                          save_step(1, world.group());
                          rlimit before{};
                          getrlimit(RLIMIT_FSIZE, &before);
                          rlimit tight = before;
                          tight.rlim_cur = 50;
                          if (world.rank() == 1) {
                            setrlimit(RLIMIT_FSIZE, &tight);
                          }
                          const std::string message = message_of<Error>([&] { save_step(2, world.group()); });
                          setrlimit(RLIMIT_FSIZE, &before);
                          EXPECT_THAT(message,
                                      AllOf(HasSubstr("rank 1: cannot write"), HasSubstr("rank00001.safetensors"),
                                            HasSubstr("File too large"), testing::Not(HasSubstr("rank 0:"))))
                              << "on rank " << world.rank();
                          world.group().barrier().wait();
                          EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step1", "latest"));
                          expect_step(Checkpoint::open(folder_), 1);
                          world.group().barrier().wait();
                          save_step(3, world.group()); // and the job goes on
                        }),
              IsEmpty());
  expect_step(Checkpoint::open(folder_), 3);
}

// Each host has a disk of its own under the same name: the save is refused, and no host keeps what its ranks have
// written.
TEST_F(SaveRanksTest, AFailedSaveLeavesNothingOnOtherHosts) {
  ASSERT_THAT(run_ranks(4,
                        [&](comm::World& world) {
                          const fs::path own = folder_ / concat("host", world.rank() / 2);
                          const at::Tensor w = at::ones({10});
                          const auto save_here = [&] {
                            save(own, "global_step1", world.group(),
                                 {part_of("w", w, 2 * world.rank(), world.rank() == 3 ? 10 : 2 * world.rank() + 2)},
                                 {});
                          };
                          EXPECT_THAT(message_of<Error>(save_here), HasSubstr("Save to a folder that all hosts share"));
                          world.group().barrier().wait();
                          EXPECT_THAT(names_in(own), IsEmpty());
                        }),
              IsEmpty());
}

TEST_F(SaveRanksTest, OverlappingOrMissingPartsAreRefusedOnEveryRank) {
  ASSERT_THAT(
      run_ranks(2,
                [&](comm::World& world) {
                  const int64_t r = world.rank();
                  EXPECT_THAT(message_of<InputError>([&] {
                                save(folder_, "a", world.group(), {part_of("w", weight(1), 40 * r, 60 + 41 * r)});
                              }),
                              HasSubstr("\"w\" has elements [40, 60) twice"));
                  EXPECT_THAT(message_of<InputError>([&] {
                                save(folder_, "a", world.group(), {part_of("w", weight(1), 60 * r, 50 + 51 * r)});
                              }),
                              HasSubstr("\"w\" lacks elements [50, 60)"));
                  EXPECT_THAT(
                      message_of<InputError>([&] { save(folder_, "a", world.group(), {}, {}, {{"x", std::nan("")}}); }),
                      HasSubstr("ranks 0 and 1: rank state.x is nan"));
                }),
      IsEmpty());
  EXPECT_THAT(names_in(folder_), IsEmpty());
}

TEST_F(SaveRanksTest, DifferentTagsAreRefusedOrRankZerosWins) {
  ASSERT_THAT(run_ranks(2,
                        [&](comm::World& world) {
                          const std::string tag = concat("tag", world.rank());
                          const std::vector<TensorShard> mine{part(1, world.rank(), 2)};
                          SaveOptions options;
                          options.tag_validation = TagValidation::fail;
                          EXPECT_THAT(
                              message_of<InputError>([&] { save(folder_, tag, world.group(), mine, {}, {}, options); }),
                              HasSubstr("rank 1 saves under the tag \"tag1\", rank 0 under \"tag0\""));
                          options.tag_validation = TagValidation::ignore;
                          save(folder_, tag, world.group(), mine, {}, {}, options);
                        }),
              IsEmpty());
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("tag0", "latest"));
  EXPECT_TRUE(at::equal(Checkpoint::open(folder_).read("w"), weight(1)));
}

TEST_F(SaveRanksTest, LatestWaitsForTheSlowestRank) {
  ASSERT_THAT(
      run_ranks(2,
                [&](comm::World& world) {
                  save_step(1, world.group());
                  if (world.rank() == 1) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(300)); // rank 0 is inside save() meanwhile
                    EXPECT_EQ(content_of(folder_ / "latest"), "global_step1\n");
                    EXPECT_FALSE(fs::exists(folder_ / "global_step2"));
                  }
                  save_step(2, world.group());
                  EXPECT_EQ(content_of(folder_ / "latest"), "global_step2\n") << "save() returns when it is durable";
                }),
      IsEmpty());
}

TEST_F(SaveRanksTest, AllRanksFallBackTogetherWhenOneFindsDamage) {
  ASSERT_THAT(run_ranks(3,
                        [&](comm::World& world) {
                          save_step(1, world.group());
                          save_step(2, world.group());
                        }),
              IsEmpty());
  damage(folder_ / "global_step2" / "rank00002.safetensors"); // rank 2 hashes this one
  ASSERT_THAT(run_ranks(3, [&](comm::World& world) { expect_step(Checkpoint::open(folder_, "", world.group()), 1); }),
              IsEmpty());
  damage(folder_ / "global_step1" / "rank00001.safetensors");
  ASSERT_THAT(run_ranks(3,
                        [&](comm::World& world) {
                          EXPECT_THAT(message_of<InputError>([&] { Checkpoint::open(folder_, "", world.group()); }),
                                      AllOf(HasSubstr("no intact checkpoint"), HasSubstr("rank 2: "),
                                            HasSubstr("global_step1/rank00001.safetensors: hash")));
                        }),
              IsEmpty());
}

// What ranks see of a folder that another run saves to may differ.
TEST_F(SaveRanksTest, RanksAgreeOnTheNewest) {
  on_ranks(2, [&](comm::World& world) {
    save_step(1, world.group());
    const fs::path absent = folder_ / "absent";
    EXPECT_EQ(find_newest(world.rank() == 0 ? folder_ : absent, world.group()), folder_ / "global_step1");
    EXPECT_EQ(find_newest(world.rank() == 0 ? absent : folder_, world.group()), std::nullopt);
  });
}

TEST_F(SaveRanksTest, ARankKilledDuringTheSaveLeavesTheEarlierCheckpoint) {
  test::RunOptions options;
  options.timeout = std::chrono::milliseconds(5000);
  const std::vector<std::string> lines = run_ranks(
      3,
      [&](comm::World& world) {
        save_step(1, world.group());
        if (world.rank() == 1) {
          std::raise(SIGKILL);
        }
        EXPECT_NE(message_of<PeerError>([&] { save_step(2, world.group()); }), "");
      },
      options);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("rank 1")));
  expect_step(Checkpoint::open(folder_), 1);
  EXPECT_FALSE(fs::exists(folder_ / "global_step2"));
  ASSERT_THAT(run_ranks(2, [&](comm::World& world) { save_step(3, world.group()); }), IsEmpty());
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step1", "global_step3", "latest"));
}

// A later training claims the run folder in the middle of a save: what is in the folder by then stays, and nothing is
// added or removed.
TEST_F(SaveRanksTest, AReplacedTrainingChangesNothingMore) {
  enum At { before_it = 1, before_it_is_visible, before_latest, before_old_ones_go };
  for (const int at : {before_it, before_it_is_visible, before_latest, before_old_ones_go}) {
    SCOPED_TRACE(at);
    const fs::path root = folder_ / std::to_string(at);
    on_ranks(2, [&](comm::World& world) {
      const auto save_with = [&](int64_t step, const SaveOptions& options) {
        save(root, step_tag(step), world.group(), {part(step, world.rank(), world.size())}, {}, {}, options);
      };
      SaveOptions options;
      options.keep_last = 1;
      save_with(1, options);
      RunToken token(folder_ / "logs");
      if (world.rank() == 0) {
        token.claim();
      }
      int calls = 0;
      options.check_claim = [&] {
        if (++calls == at) {
          RunToken(folder_ / "logs").claim();
        }
        token.check();
      };
      EXPECT_THAT(message_of<PeerError>([&] { save_with(2, options); }),
                  AllOf(HasSubstr("this training (attempt "), HasSubstr("was replaced by attempt "),
                        HasSubstr("writes nothing more")));
      EXPECT_EQ(calls, world.rank() == 0 ? at : 0);
      world.group().barrier("done").wait();
    });
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(root)) {
      names.insert(entry.path().filename().string());
    }
    const bool visible = at > before_it_is_visible;
    EXPECT_EQ(names, visible ? (std::set<std::string>{"global_step1", "global_step2", "latest"})
                             : (std::set<std::string>{"global_step1", "latest"}));
    EXPECT_EQ(read_latest(root), at > before_latest ? "global_step2" : "global_step1");
    EXPECT_EQ(Checkpoint::open(root / "global_step1").step(), 1);
  }
}

} // namespace
} // namespace trireme::checkpoint
