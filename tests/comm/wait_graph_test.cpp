#include <trireme/comm/hang_report.h>
#include <trireme/comm/wait_graph.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kPipe = "pipe/1";

/// A rank of group "pipe" with one operation; `waits`: it is in wait() of it.
PeerView at(OpSummary op, bool waits, const std::vector<int>& members = {0, 1, 2, 3}) {
  PeerView view;
  view.answered = true;
  GroupView group{"pipe", members, {}};
  group.progress.note(op);
  if (waits) {
    group.progress.waiting = {op.number, op.is_message(), 12};
  }
  view.groups[kPipe] = group;
  return view;
}

OpSummary recv(int peer, int64_t number = 5) {
  return {number, "recv", 4000, "Byte", "activations", peer, false};
}

PeerView busy(const char* what, int64_t number, const char* detail) {
  PeerView view = at(recv(0, 4), false);
  view.groups[kPipe].progress.mark_done(recv(0, 4));
  view.notes = {{1, true, {{"forward of micro-batch", 5, "", 13}, {what, number, detail, 12}}}};
  return view;
}

TEST(WaitGraphTest, FollowsMessagesToTheRankThatWaitsForNobody) {
  std::map<int, PeerView> ranks = {
      {0, busy("layer", 7, "ReLU")}, {1, at(recv(0), true)}, {2, at(recv(1), true)}, {3, at(recv(2), true)}};
  const WaitGraph graph = follow_waits(ranks, 3);
  EXPECT_THAT(graph.roots, ElementsAre(0));
  EXPECT_THAT(graph.circle, IsEmpty());
  EXPECT_THAT(graph.waits.at(2).for_ranks, ElementsAre(1));
  const std::string text = hang_text(ranks, 3, "something");
  EXPECT_THAT(text, HasSubstr("held up by: rank 0 is in layer 7 (ReLU), in forward of micro-batch 5, for 12.0 s"));
  EXPECT_THAT(text,
              HasSubstr("rank 1 waits 12.0 s in recv #5 from rank 0 (\"activations\", 4.00 kB) of group \"pipe\""));
  EXPECT_LT(text.find("held up by"), text.find("rank 1 waits"));
}

TEST(WaitGraphTest, FollowsCollectivesToThoseThatHaveNotCome) {
  const OpSummary reduce{9, "all_reduce", 4, "Float", "loss", -1, false};
  OpSummary before = reduce;
  before.number = 8;
  before.done = true;
  std::map<int, PeerView> ranks = {
      {0, at(reduce, true)}, {1, at(reduce, true)}, {2, at(before, false)}, {3, at(reduce, true)}};
  EXPECT_THAT(follow_waits(ranks, 0).roots, ElementsAre(2));
  ranks[2].answered = false;
  ranks[2].process = 77;
  ranks[2].state = "is stopped (state T)";
  EXPECT_THAT(hang_text(ranks, 0, "x"),
              HasSubstr("held up by: rank 2 does not answer: its process 77 is stopped (state T)"));
  ranks[2] = at(reduce, true);
  EXPECT_THAT(follow_waits(ranks, 0).roots, IsEmpty()) << "all have come";
  ranks[2] = at(reduce, false); // has begun it and does something else before it waits
  EXPECT_THAT(follow_waits(ranks, 0).roots, ElementsAre(2));
}

PeerView on_device(PeerView view) {
  view.groups[kPipe].progress.waiting->on_device = true;
  return view;
}

TEST(WaitGraphTest, DevicesWaitForThoseThatHaveNotCome) {
  const OpSummary reduce{9, "all_reduce", 4, "Float", "loss", -1, false};
  const OpSummary before{8, "all_reduce", 4, "Float", "loss", -1, true};
  std::map<int, PeerView> ranks = {{0, on_device(at(reduce, true))},
                                   {1, on_device(at(reduce, true))},
                                   {2, at(before, false)},
                                   {3, on_device(at(reduce, true))}};
  EXPECT_THAT(follow_waits(ranks, 0).roots, ElementsAre(2));
  EXPECT_THAT(hang_text(ranks, 0, "x"), HasSubstr("rank 1 waits 12.0 s on its device in all_reduce #9"));
  ranks[2] = on_device(at(reduce, true));
  const WaitGraph all = follow_waits(ranks, 0);
  EXPECT_THAT(all.roots, IsEmpty());
  EXPECT_THAT(all.circle, IsEmpty()) << "devices that are all at it do not wait for each other";
}

TEST(WaitGraphTest, AThreadThatWaitsCountsMoreThanADevice) {
  // Rank 1 is busy, and its device waits for rank 0, which waits for a message of rank 1.
  std::map<int, PeerView> ranks = {{0, at(recv(1), true)}, {1, on_device(at(recv(0), true))}, {2, at(recv(0), true)}};
  EXPECT_THAT(follow_waits(ranks, 2).roots, ElementsAre(1));
  EXPECT_THAT(follow_waits(ranks, 2).circle, IsEmpty());
  ranks[0] = on_device(at(recv(1), true));
  EXPECT_THAT(follow_waits(ranks, 2).circle, testing::UnorderedElementsAre(0, 1));
  // A newer wait of a device does not hide that of the thread.
  GroupView other = ranks[1].groups[kPipe];
  other.progress.waiting->seconds = 1;
  ranks[0] = at(recv(2), true);
  ranks[0].groups["other/1"] = other;
  EXPECT_FALSE(follow_waits(ranks, 0).waits.at(0).on_device);
}

TEST(WaitGraphTest, ACircleHasNoRoot) {
  std::map<int, PeerView> ranks = {{0, at(recv(1), true)}, {1, at(recv(0), true)}, {2, at(recv(1), true)}};
  const WaitGraph graph = follow_waits(ranks, 2);
  EXPECT_THAT(graph.roots, IsEmpty());
  EXPECT_THAT(graph.circle, testing::UnorderedElementsAre(0, 1));
  EXPECT_THAT(hang_text(ranks, 2, "x"), HasSubstr("wait for each other"));
}

TEST(WaitGraphTest, SurvivesTheTripAsJson) {
  PeerView view = busy("layer", 7, "ReLU");
  view.error = "[data] gone";
  view.process = 42;
  view.place = "here";
  view.stack = {"a()", "b()"};
  view.groups[kPipe].progress.waiting = {4, true, 1.5, true};
  const PeerView copy = view_from_json(nlohmann::json::parse(to_json(view).dump()));
  EXPECT_EQ(to_json(copy), to_json(view));
  EXPECT_EQ(describe_activity(copy), describe_activity(view));
  EXPECT_EQ(copy.groups.at(kPipe).progress.awaited()->peer, 0);
}

} // namespace
} // namespace trireme::comm
