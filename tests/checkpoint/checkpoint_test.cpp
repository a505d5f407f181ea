#include "hand_made.h"

#include <nlohmann/json.hpp>

#include <random>

namespace trireme::checkpoint {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class CheckpointTest : public FolderTest {
 protected:
  void save_step(int64_t step, const SaveOptions& options = {}) {
    save(folder_, step_tag(step), comm::Group(), {whole_of("w", at::full({3, 2}, static_cast<double>(step)))},
         {{"step", step}}, json::object(), options);
  }
  int64_t loaded_step() {
    const Checkpoint opened = Checkpoint::open(folder_);
    EXPECT_TRUE(at::equal(opened.read("w"), at::full({3, 2}, opened.state().at("step").get<double>())));
    return opened.state().at("step");
  }
};

TEST_F(CheckpointTest, OneRankSavesAndReadsEverything) {
  const at::Tensor w = at::randn({5, 7});
  const at::Tensor m = at::randn({35});
  const at::Tensor rng = at::randint(0, 256, {64}, at::kByte);
  save(folder_, "global_step12", comm::Group(),
       {whole_of("w", w), part_of("adam.m", m, 0, 10), part_of("adam.m", m, 10, 35), whole_of("rng", rng, "rng"),
        whole_of("step", at::scalar_tensor(12, at::kLong), "optimizer"), whole_of("none", at::empty({0, 4}))},
       {{"sampler", {{"position", 960}}}}, {{"cuda", false}}, {}, {{"lr", 0.001}});

  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step12", "latest"));
  EXPECT_EQ(content_of(folder_ / "latest"), "global_step12\n");
  EXPECT_THAT(names_in(folder_ / "global_step12"), UnorderedElementsAre("rank00000.safetensors", "manifest.json"));
  const Checkpoint opened = Checkpoint::open(folder_);
  EXPECT_EQ(opened.step(), 12);
  EXPECT_EQ(opened.world_size(), 1);
  EXPECT_THAT(opened.names(), ElementsAre("adam.m", "none", "rng", "step", "w"));
  EXPECT_THAT(opened.names("rng"), ElementsAre("rng"));
  EXPECT_TRUE(at::equal(opened.read("w"), w));
  EXPECT_TRUE(at::equal(opened.read("adam.m"), m));
  EXPECT_TRUE(at::equal(opened.read("rng"), rng));
  EXPECT_EQ(opened.read("step").item<int64_t>(), 12);
  EXPECT_EQ(opened.read("none").sizes(), (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(opened.entry("w").kind, "parameter");
  EXPECT_EQ(opened.state(), (json{{"sampler", {{"position", 960}}}}));
  EXPECT_EQ(opened.rank_state(0), (json{{"cuda", false}}));
  EXPECT_EQ(opened.config(), (json{{"lr", 0.001}}));
  EXPECT_THAT(message_of<InputError>([&] { opened.rank_state(1); }), HasSubstr("saved by 1 ranks"));
  EXPECT_THAT(message_of<InputError>([&] { opened.read("adam.n"); }), HasSubstr("Did you mean \"adam.m\"?"));
}

TEST_F(CheckpointTest, WholeTensorsAreOrdinarySafetensors) {
  save(folder_, "global_step1", comm::Group(), {whole_of("h.0.weight", at::ones({2, 3}).t())});
  const Safetensors file = Safetensors::open(folder_ / "global_step1" / "rank00000.safetensors");
  EXPECT_EQ(file.info("h.0.weight").shape, (std::vector<int64_t>{3, 2}));
}

TEST_F(CheckpointTest, ReadTensorsAreOwnMemory) {
  save_step(1);
  const Checkpoint opened = Checkpoint::open(folder_);
  opened.read("w").fill_(9);
  EXPECT_TRUE(at::equal(opened.read("w"), at::full({3, 2}, 1.0)));
}

TEST_F(CheckpointTest, AnyCutOfAnySavingRanksReadsBackAnyRange) {
  std::mt19937 random(5);
  const auto upto = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  for (int trial = 0; trial < 25; ++trial) {
    const size_t ranks = 1 + static_cast<size_t>(upto(3));
    const at::Tensor flat = at::randn({1 + upto(20), 1 + upto(20)});
    const at::Tensor boxed = at::randn({2 + upto(6), 2 + upto(6), 1 + upto(4)}).to(at::kBFloat16);
    std::vector<std::vector<TensorShard>> of_ranks(ranks);
    // Uneven flat ranges, some of them empty, in any order over the ranks.
    std::vector<int64_t> cuts{0, flat.numel()};
    for (size_t i = 0; i < ranks; ++i) {
      cuts.push_back(upto(flat.numel()));
    }
    std::sort(cuts.begin(), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      of_ranks[static_cast<size_t>(upto(static_cast<int64_t>(ranks) - 1))].push_back(
          part_of("flat", flat, cuts[i], cuts[i + 1]));
    }
    // Columns as in tensor parallel, the second box cut once more as ZeRO does.
    const int64_t column = 1 + upto(boxed.size(1) - 2);
    const at::Tensor left = boxed.narrow(1, 0, column);
    const at::Tensor right = boxed.narrow(1, column, boxed.size(1) - column);
    const int64_t middle = upto(right.numel());
    const std::vector<int64_t> offset{0, column, 0};
    of_ranks[0].push_back({"boxed", "parameter", boxed.sizes().vec(), 0, left, {0, 0, 0}, left.sizes().vec()});
    of_ranks[ranks - 1].push_back({"boxed", "parameter", boxed.sizes().vec(), 0,
                                   right.reshape({-1}).narrow(0, 0, middle), offset, right.sizes().vec()});
    of_ranks[0].push_back({"boxed", "parameter", boxed.sizes().vec(), middle,
                           right.reshape({-1}).narrow(0, middle, right.numel() - middle), offset, right.sizes().vec()});
    const fs::path folder = folder_ / concat("global_step", trial);
    write_by_hand(folder, of_ranks, trial);

    const Checkpoint opened = Checkpoint::open(folder);
    for (const auto& [name, whole] : {std::pair<const char*, at::Tensor>{"flat", flat}, {"boxed", boxed}}) {
      ASSERT_TRUE(at::equal(opened.read(name), whole)) << name;
      for (int i = 0; i < 10; ++i) {
        const int64_t begin = upto(whole.numel());
        const int64_t end = begin + upto(whole.numel() - begin);
        ASSERT_TRUE(at::equal(opened.read_range(name, begin, end), whole.reshape({-1}).narrow(0, begin, end - begin)));
      }
    }
  }
}

TEST_F(CheckpointTest, BoxesSavedBySaveComeBack) {
  const at::Tensor w = at::randn({6, 8});
  const auto column = [&](int64_t from, int64_t to) {
    const at::Tensor box = w.narrow(1, from, to - from);
    return TensorShard{"w", "parameter", {6, 8}, 0, box, {0, from}, box.sizes().vec()};
  };
  save(folder_, "global_step1", comm::Group(), {column(0, 3), column(3, 8)});
  EXPECT_TRUE(at::equal(Checkpoint::open(folder_).read("w"), w));
}

// Of two ranks for three, and for all. A look at every row for every row would be 10^11 steps.
TEST_F(CheckpointTest, ColumnsOfManyRowsComeBack) {
  constexpr int64_t kRows = 200'000;
  const at::Tensor w = at::arange(kRows * 6, at::kInt).view({kRows, 6});
  const auto column = [&](int64_t from, int64_t to) {
    const at::Tensor box = w.narrow(1, from, to - from);
    return TensorShard{"w", "parameter", {kRows, 6}, 0, box, {0, from}, box.sizes().vec()};
  };
  save(folder_, "global_step1", comm::Group(), {column(0, 3), column(3, 6)});
  const Checkpoint opened = Checkpoint::open(folder_);
  for (const int64_t from : {0, 2, 4}) {
    const at::Tensor part = at::zeros({kRows, 2}, at::kInt);
    opened.read_into("w", Region{{0, from}, {kRows, 2}, 0, 2 * kRows}, part);
    EXPECT_TRUE(at::equal(part, w.narrow(1, from, 2)));
  }
  const at::Tensor low = at::zeros({kRows}, at::kFloat);
  opened.read_into("w", Region{{0, 3}, {kRows, 2}, kRows / 2, kRows / 2 + kRows}, low);
  EXPECT_TRUE(at::equal(low, w.narrow(1, 3, 2).reshape({-1}).narrow(0, kRows / 2, kRows).to(at::kFloat)));
  EXPECT_TRUE(at::equal(opened.read("w"), w));
  EXPECT_THAT(message_of<InputError>([&] {
                opened.read_into("w", Region{{0, 3}, {kRows, 2}, 0, 2 * kRows}, at::zeros({2, kRows}, at::kInt).t());
              }),
              HasSubstr("not contiguous"));
}

TEST_F(CheckpointTest, ARangeOpensOnlyTheFilesThatHoldIt) {
  const at::Tensor w = at::arange(100, at::kFloat);
  write_by_hand(folder_ / "global_step1", {{part_of("w", w, 0, 50)}, {part_of("w", w, 50, 100)}});
  OpenOptions options;
  options.verify_hashes = false;
  const fs::path second = folder_ / "global_step1" / "rank00001.safetensors";
  put_content(second, std::string(content_of(second).size(), 'x'));
  const Checkpoint opened = Checkpoint::open(folder_, "", options);
  EXPECT_TRUE(at::equal(opened.read_range("w", 10, 50), w.narrow(0, 10, 40)));
  EXPECT_THROW(opened.read_range("w", 10, 51), InputError);
}

TEST_F(CheckpointTest, ReadIntoFillsAndConverts) {
  const at::Tensor w = at::randn({40});
  save(folder_, "global_step1", comm::Group(), {whole_of("w", w)});
  const Checkpoint opened = Checkpoint::open(folder_);
  at::Tensor part = at::zeros({12});
  opened.read_into("w", 5, part);
  EXPECT_TRUE(at::equal(part, w.narrow(0, 5, 12)));
  at::Tensor low = at::zeros({4, 10}, at::kBFloat16);
  opened.read_into("w", 0, low);
  EXPECT_TRUE(at::equal(low, w.view({4, 10}).to(at::kBFloat16)));
  EXPECT_THAT(message_of<InputError>([&] { opened.read_into("w", 30, part); }), HasSubstr("cannot be filled"));
  EXPECT_THROW(opened.read_into("w", 0, at::zeros({4, 4}).t()), InputError);
}

TEST_F(CheckpointTest, KeepsTheLastOnes) {
  SaveOptions options;
  options.keep_last = 2;
  for (const int64_t step : {1, 2, 3, 4}) {
    save_step(step, options);
  }
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step3", "global_step4", "latest"));
  options.keep_last = 0;
  save_step(5, options);
  save_step(6, options);
  EXPECT_THAT(names_in(folder_),
              UnorderedElementsAre("global_step3", "global_step4", "global_step5", "global_step6", "latest"));
}

TEST_F(CheckpointTest, KeepLastCountsSavesSoThatARunThatWentBackKeepsItsOwn) {
  SaveOptions options;
  options.keep_last = 2;
  save_step(100, options);
  save_step(200, options);
  save_step(60, options); // resumed from an older one
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step200", "global_step60", "latest"));
  fs::remove(folder_ / "latest");
  EXPECT_EQ(loaded_step(), 60);
}

TEST_F(CheckpointTest, RemovalLeavesForeignAndDamagedFoldersAlone) {
  fs::create_directories(folder_ / "notes");
  fs::create_directories(folder_ / "global_step0");
  put_content(folder_ / "global_step0" / "manifest.json", "{}");
  SaveOptions options;
  options.keep_last = 1;
  save_step(1, options);
  save_step(2, options);
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("notes", "global_step0", "global_step2", "latest"));
}

// Moved to another disk by its user, with a link in its place: the link goes.
TEST_F(CheckpointTest, RemovalDoesNotFollowLinks) {
  save_step(1);
  fs::create_directory(folder_ / "elsewhere");
  fs::rename(folder_ / "global_step1", folder_ / "elsewhere" / "global_step1");
  fs::create_directory_symlink(folder_ / "elsewhere" / "global_step1", folder_ / "global_step1");
  SaveOptions options;
  options.keep_last = 1;
  save_step(2, options);
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("elsewhere", "global_step2", "latest"));
  EXPECT_THAT(names_in(folder_ / "elsewhere" / "global_step1"),
              UnorderedElementsAre("manifest.json", "rank00000.safetensors"));
}

// What can be saved can be loaded.
TEST_F(CheckpointTest, StatesAreAsDeepAsALoadTakesThem) {
  const auto nested = [](int levels) {
    std::string text = "1";
    for (int level = 0; level < levels; ++level) {
      text = level % 2 == 0 ? concat('[', text, ']') : concat("{\"a\":", text, '}');
    }
    return json::parse(text);
  };
  save_step(1);
  for (const int levels : {98, 99, 150, 1000}) {
    const auto save_all = [&] {
      save(folder_, "global_step2", comm::Group(), {whole_of("w", at::ones({2}))}, nested(levels), nested(levels - 1),
           {}, nested(levels));
    };
    if (levels == 98) {
      save_all();
      EXPECT_EQ(Checkpoint::open(folder_).state(), nested(levels));
      EXPECT_EQ(Checkpoint::open(folder_).rank_state(0), nested(levels - 1));
    } else {
      EXPECT_THAT(message_of<InputError>(save_all),
                  AllOf(HasSubstr("state."), HasSubstr(".a.0.a.0"),
                        HasSubstr("is nested deeper than the 98 levels that a checkpoint holds"), HasSubstr("dump()")));
    }
  }
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step1", "global_step2", "latest"));
}

TEST_F(CheckpointTest, SavingATagAgainReplacesIt) {
  save_step(3);
  save(folder_, "global_step3", comm::Group(), {whole_of("w", at::full({3, 2}, 30.0))}, {{"step", 30}});
  EXPECT_EQ(loaded_step(), 30);
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step3", "latest"));
  SaveOptions options;
  options.fail_if_exists = true;
  EXPECT_THAT(message_of<InputError>([&] { save_step(3, options); }), HasSubstr("global_step3 exists"));
  EXPECT_EQ(loaded_step(), 30);
}

TEST_F(CheckpointTest, NeverReplacesAFolderThatIsNoCheckpoint) {
  fs::create_directories(folder_ / "global_step1");
  put_content(folder_ / "global_step1" / "thesis.txt", "precious");
  EXPECT_THAT(message_of<InputError>([&] { save_step(1); }), HasSubstr("is not a checkpoint"));
  EXPECT_EQ(content_of(folder_ / "global_step1" / "thesis.txt"), "precious");
}

TEST_F(CheckpointTest, RefusesShardsThatDoNotFitTogetherAndKeepsTheEarlierCheckpoint) {
  save_step(1);
  const at::Tensor w = at::arange(10, at::kFloat);
  const auto refusal = [&](const std::vector<TensorShard>& shards, const json& state = json::object(),
                           const std::string& tag = "global_step2") {
    return message_of<InputError>([&] { save(folder_, tag, comm::Group(), shards, state); });
  };
  EXPECT_THAT(refusal({part_of("x", w, 0, 4), part_of("x", w, 5, 10)}),
              HasSubstr("tensor \"x\" lacks elements [4, 5)"));
  EXPECT_THAT(refusal({part_of("x", w, 0, 6), part_of("x", w, 5, 10)}),
              HasSubstr("tensor \"x\" has elements [5, 6) twice"));
  EXPECT_THAT(refusal({whole_of("x", w), whole_of("x", w)}), HasSubstr("tensor \"x\" has elements [0, 10) twice"));
  EXPECT_THAT(refusal({part_of("x", w, 0, 4), part_of("x", w.to(at::kInt), 4, 10)}),
              HasSubstr("parameter F32 [10] on one rank and parameter I32"));
  EXPECT_THAT(refusal({{"x", "p", {10}, 5, w, {}, {}}}), HasSubstr("lie outside"));
  EXPECT_THAT(refusal({{"x", "p", {10}, 0, at::Tensor(), {}, {}}}), HasSubstr("undefined"));
  EXPECT_THAT(refusal({{"", "p", {10}, 0, w, {}, {}}}), HasSubstr("needs a name"));
  EXPECT_THAT(refusal({whole_of("x", at::ones({1}, at::kComplexDouble))}), HasSubstr("no dtype"));
  EXPECT_THAT(refusal({}, {{"loss", std::nan("")}}), HasSubstr("state.loss is nan"));
  EXPECT_THAT(refusal({}, {}, "../escape"), HasSubstr("cannot save under the tag"));
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("global_step1", "latest"));
  EXPECT_EQ(loaded_step(), 1);
}

TEST_F(CheckpointTest, KeysNeverClash) {
  const at::Tensor w = at::arange(10, at::kFloat);
  save(folder_, "global_step1", comm::Group(),
       {whole_of("w@5", w.neg()), part_of("w", w, 0, 5), part_of("w", w, 5, 10), whole_of("__metadata__", w + 1)});
  const Checkpoint opened = Checkpoint::open(folder_);
  EXPECT_TRUE(at::equal(opened.read("w@5"), w.neg()));
  EXPECT_TRUE(at::equal(opened.read("w"), w));
  EXPECT_TRUE(at::equal(opened.read("__metadata__"), w + 1));
}

TEST_F(CheckpointTest, OpensByFolderOrTag) {
  save_step(1);
  save_step(2);
  EXPECT_EQ(Checkpoint::open(folder_, "global_step1").step(), 1);
  EXPECT_EQ(Checkpoint::open(folder_ / "global_step1").step(), 1);
  EXPECT_EQ(Checkpoint::open(folder_).step(), 2);
  put_content(folder_ / "latest", "global_step1"); // a person goes back
  EXPECT_EQ(Checkpoint::open(folder_).step(), 1);
  EXPECT_EQ(find_newest(folder_), folder_ / "global_step1");
  EXPECT_THAT(message_of<InputError>([&] { Checkpoint::open(folder_, "global_step3"); }),
              AllOf(HasSubstr("global_step3"), HasSubstr("Did you mean")));
  EXPECT_THROW(Checkpoint::open(folder_, "../" + folder_.filename().string() + "/global_step1"), InputError);
}

TEST_F(CheckpointTest, NothingSavedYetIsNotAnError) {
  EXPECT_EQ(find_newest(folder_), std::nullopt);
  EXPECT_EQ(find_newest(folder_ / "absent"), std::nullopt);
  EXPECT_THAT(message_of<InputError>([&] { Checkpoint::open(folder_); }), HasSubstr("there is no checkpoint in"));
  EXPECT_THAT(message_of<InputError>([&] { Checkpoint::open(folder_ / "absent"); }), HasSubstr("there is no folder"));
  save_step(1);
  EXPECT_EQ(find_newest(folder_), folder_ / "global_step1");
  EXPECT_EQ(find_newest(folder_ / "global_step1"), folder_ / "global_step1");
}

} // namespace
} // namespace trireme::checkpoint
