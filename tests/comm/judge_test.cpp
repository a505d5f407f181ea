// Which operations that wait for long are waited for on, and which no rank will complete.
#include <trireme/comm/late_ranks.h>

#include <gmock/gmock.h>

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = Outlook::Kind;

constexpr const char* kKey = "world/0";
constexpr double kLimit = 60;

/// A rank of a group of `size` that has begun collective `number`; `seconds`: waits for it, for so long.
PeerView at(int64_t number, double seconds = 0, bool on_device = false, int size = 3) {
  PeerView view;
  view.answered = true;
  GroupView group{"world", {}, {}};
  for (int member = 0; member < size; ++member) {
    group.members.push_back(member);
  }
  group.progress.note({number, "all_reduce", 4, "Float", "", -1, seconds == 0});
  if (seconds > 0) {
    group.progress.waiting = {number, false, seconds, on_device};
  }
  view.groups[kKey] = group;
  return view;
}

/// The same in another group, which the other ranks have too.
PeerView also(PeerView view, const std::string& key, std::vector<int> members, int64_t number, double seconds) {
  GroupView group{key, std::move(members), {}};
  if (number > 0) {
    group.progress.note({number, "all_gather", 4, "Float", "", -1, seconds == 0});
  }
  if (seconds > 0) {
    group.progress.waiting = {number, false, seconds};
  }
  view.groups[key] = std::move(group);
  return view;
}

Outlook judged(const std::map<int, PeerView>& ranks, int from = 1) {
  return judge(ranks, from, kKey, kLimit);
}

TEST(JudgeTest, ARankThatLivesAndDoesNotWaitIsLate) {
  const Outlook outlook = judged({{0, at(1)}, {1, at(2, 61)}, {2, at(2, 60.5)}});
  EXPECT_EQ(outlook.kind, Kind::late);
  EXPECT_THAT(outlook.late, ElementsAre(0));
  EXPECT_THAT(judged({{0, at(1)}, {1, at(2, 61)}, {2, at(1)}}).late, ElementsAre(0, 2));
}

// A reducer begins all buckets and waits for the first.
TEST(JudgeTest, AnOperationIsFoundHoweverManyWereBegunAfterIt) {
  GroupProgress progress;
  for (int64_t number = 1; number <= 40; ++number) {
    progress.note({number, "all_reduce", 4, "Float", "", -1, false});
  }
  progress.waiting = {1, false, 61};
  ASSERT_NE(progress.awaited(), nullptr);
  PeerView waits = at(1);
  waits.groups[kKey].progress = progress;
  EXPECT_THAT(judged({{0, at(0)}, {1, waits}, {2, waits}}).late, ElementsAre(0));
  for (int64_t number = 1; number <= 40; ++number) {
    progress.mark_done({number, "all_reduce", 4, "Float", ""});
    progress.note({40 + number, "all_reduce", 4, "Float", "", -1, true});
  }
  EXPECT_EQ(progress.recent.size(), GroupProgress::kRecent);
}

TEST(JudgeTest, AShortOrFinishedWaitIsOpen) {
  EXPECT_EQ(judged({{0, at(1)}, {1, at(2, 59)}, {2, at(2, 59)}}).kind, Kind::open);
  EXPECT_EQ(judged({{0, at(2)}, {1, at(2)}, {2, at(2)}}).kind, Kind::open);
}

TEST(JudgeTest, RanksThatWillNeverCome) {
  PeerView silent = at(1);
  silent.answered = false;
  PeerView left = at(1);
  left.left = true;
  PeerView failed = at(1);
  failed.error = "[data] out of samples";
  for (const PeerView& gone : {silent, left, failed}) {
    EXPECT_EQ(judged({{0, gone}, {1, at(2, 61)}, {2, at(2, 61)}}).kind, Kind::hopeless);
    EXPECT_EQ(judged({{0, gone}, {1, at(2, 61)}, {2, at(1)}}).kind, Kind::hopeless)
        << "also with one that is only late";
  }
}

TEST(JudgeTest, AnOperationThatAllHaveJoinedIsStuck) {
  EXPECT_EQ(judged({{0, at(2, 61)}, {1, at(2, 61)}, {2, at(2, 61)}}).kind, Kind::hopeless);
  EXPECT_EQ(judged({{0, at(2, 61, true)}, {1, at(2, 61, true)}, {2, at(2, 61, true)}}).kind, Kind::hopeless);
}

// The bytes of an operation may be on their way when the last rank has come.
TEST(JudgeTest, AnOperationThatTheLastHasJustJoinedIsOpen) {
  EXPECT_EQ(judged({{0, at(2, 0.5)}, {1, at(2, 61)}, {2, at(2, 61)}}).kind, Kind::open);
  EXPECT_EQ(judged({{0, at(2, 0.5, true)}, {1, at(2, 61, true)}, {2, at(2, 61, true)}}).kind, Kind::open);
  PeerView behind = also(at(1, 0), "pair", {1, 2}, 0, 0);
  EXPECT_EQ(judged({{0, behind}, {1, at(2, 61)}, {2, at(2, 61)}}).kind, Kind::late);
}

// Over shared memory the bytes move only while a thread waits for them: the rank that is late is behind the one that
// has joined.
TEST(JudgeTest, WhoHasJoinedAndWaitsElsewhereIsFollowed) {
  PeerView ties = also(at(2), "tie", {0, 2}, 1, 61);
  ties.groups[kKey].progress.recent.back().done = false;
  const std::map<int, PeerView> ranks = {{0, ties}, {1, at(2, 61)}, {2, also(at(2, 61), "tie", {0, 2}, 0, 0)}};
  auto busy = ranks;
  busy[2] = also(at(2), "tie", {0, 2}, 0, 0);
  EXPECT_EQ(judged(busy).kind, Kind::late);
  EXPECT_THAT(judged(busy).late, ElementsAre(2));
  EXPECT_EQ(judged(ranks).kind, Kind::hopeless) << "rank 2 waits here for rank 0, which waits for it";
  auto gone = busy;
  gone[2].answered = false;
  EXPECT_EQ(judged(gone).kind, Kind::hopeless);
}

TEST(JudgeTest, RanksThatWaitForEachOtherAreADeadlock) {
  const auto ranks = [](double other) {
    return std::map<int, PeerView>{
        {0, also(at(1), "norms", {0, 1}, 1, other)}, {1, also(at(2, 61), "norms", {0, 1}, 0, 0)}, {2, at(1)}};
  };
  EXPECT_EQ(judged(ranks(61)).kind, Kind::hopeless) << "rank 2 is late, but that does not help";
  EXPECT_EQ(judged(ranks(30)).kind, Kind::late) << "rank 0 may have what it waits for by now; rank 2 is late";
  auto two = ranks(59);
  two.erase(2);
  two[0].groups[kKey].members = two[1].groups[kKey].members = {0, 1};
  EXPECT_EQ(judged(two).kind, Kind::open) << "rank 0 will ask in a moment";
}

TEST(JudgeTest, RanksThatExchangeSomethingLive) {
  const std::map<int, PeerView> ranks = {
      {0, also(at(1), "evaluation", {0, 2}, 7, 0.1)}, {1, at(2, 61)}, {2, also(at(1), "evaluation", {0, 2}, 7, 0.2)}};
  const Outlook outlook = judged(ranks);
  EXPECT_EQ(outlook.kind, Kind::late);
  EXPECT_THAT(outlook.late, ElementsAre(0, 2));
}

TEST(JudgeTest, TheLateRankMayBeBehindAnotherOne) {
  const std::map<int, PeerView> ranks = {
      {0, also(at(1), "pair", {0, 2}, 1, 61)}, {1, at(2, 61)}, {2, also(at(2, 50), "pair", {0, 2}, 0, 0)}};
  EXPECT_EQ(judged(ranks).kind, Kind::open) << "rank 2 waits for rank 0, which waits for rank 2";
  auto busy = ranks;
  busy[2].groups[kKey].progress.waiting.reset();
  EXPECT_THAT(judged(busy).late, ElementsAre(2));
}

// The thread of a rank whose device waits is on its way.
TEST(JudgeTest, ADeviceThatWaitsIsNoDeadlockWithAThread) {
  const auto ranks = [](bool from_waits_on_device) {
    std::map<int, PeerView> all = {{0, also(at(1), "pair", {0, 1}, 1, 61)},
                                   {1, also(at(2, 61, from_waits_on_device), "pair", {0, 1}, 0, 0)}};
    all[0].groups["pair"].progress.waiting->on_device = true;
    all[0].groups[kKey].members = all[1].groups[kKey].members = {0, 1};
    return all;
  };
  EXPECT_THAT(judged(ranks(false)).late, ElementsAre(0));
  EXPECT_EQ(judged(ranks(true)).kind, Kind::hopeless) << "devices that wait for each other";
  EXPECT_THAT(judged(ranks(true)).late, IsEmpty());
}

} // namespace
} // namespace trireme::comm
