#include <trireme/comm/call_advice.h>
#include <trireme/comm/explain.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::comm {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

GroupProgress doing(OpSummary op, bool done = false) {
  GroupProgress progress;
  op.done = done;
  progress.note(op);
  return progress;
}

OpSummary bucket(int64_t number, int64_t bytes = 26'214'400) {
  return {number, "all_reduce", bytes, "Float", "bucket 3", -1, false};
}

/// Eight ranks, this one is 3; all others are at #1207 too.
struct Scene {
  Asker asker{"data", {0, 1, 2, 3, 4, 5, 6, 7}, 3, 8, std::chrono::seconds(60)};
  OpSummary op = bucket(1207);
  RollCall roll_call;

  Scene() {
    for (int rank = 0; rank < 8; ++rank) {
      if (rank != 3) {
        roll_call.peers[rank] = {.answered = true, .left = false, .error = "", .progress = doing(op)};
      }
    }
  }
  std::string late() const { return explain(asker, op, Trouble(Trouble::Kind::deadline, "late"), roll_call).what(); }
  std::string lost() const {
    return explain(asker, op, Trouble(Trouble::Kind::lost, "Connection closed by peer"), roll_call).what();
  }
};

TEST(ExplainTest, NamesTheAbsentAndWhereTheyAre) {
  Scene scene;
  scene.roll_call.peers[5].progress = doing({1206, "all_reduce", 4, "Float", "loss", -1, false});
  scene.roll_call.peers[7].progress = doing({1190, "barrier", 0, "Byte", "", -1, false}, true);
  EXPECT_EQ(scene.late(),
            "[comm] all_reduce #1207 (\"bucket 3\", 26.2 MB) in group \"data\" is not done after 1 min 00 s on rank 3 "
            "of 8: ranks 5 and 7 have not "
            "come (rank 5 is at all_reduce #1206 (\"loss\", 4 B), rank 7 last did barrier #1190 (0 B)). Look at what "
            "ranks 5 and 7 are doing "
            "instead; if it only needs longer, set TRIREME_TIMEOUT to more seconds.");
}

TEST(ExplainTest, TheSilentComeBeforeTheAbsent) {
  Scene scene;
  scene.roll_call.peers[5] = {};
  scene.roll_call.peers[6].progress = doing(bucket(1206));
  EXPECT_THAT(scene.lost(), HasSubstr("failed on rank 3 of 8: rank 5 does not answer any more"));
  EXPECT_THAT(scene.lost(), HasSubstr("; rank 6 has not come"));
  EXPECT_THAT(scene.lost(), HasSubstr("Look at the output of rank 5"));
}

TEST(ExplainTest, OtherSizesOperationsAndTypesAreMismatches) {
  for (const auto& theirs : {bucket(1207, 100), OpSummary{1207, "broadcast", 26'214'400, "Float", "", -1, false},
                             OpSummary{1207, "all_reduce", 26'214'400, "Half", "", -1, false}}) {
    Scene scene;
    scene.roll_call.peers[2].progress = doing(theirs);
    EXPECT_THAT(scene.late(), HasSubstr("rank 2 called " + describe(theirs) + " of " + std::string(theirs.dtype) +
                                        " where this rank called " + describe(scene.op)));
    EXPECT_THAT(scene.late(), HasSubstr("same order"));
  }
}

TEST(ExplainTest, RanksAheadOfUsHaveCome) {
  Scene scene;
  scene.roll_call.peers[2].progress->note({1208, "broadcast", 4, "Float", "", -1, false});
  EXPECT_THAT(scene.late(), Not(HasSubstr("rank 2")));
  EXPECT_THAT(scene.late(), HasSubstr("all ranks have come and answer"));
}

TEST(ExplainTest, TheGoneAndTheFailed) {
  Scene scene;
  scene.roll_call.peers[1] = {.answered = false, .left = true, .error = "", .progress = doing(bucket(1206), true)};
  scene.roll_call.peers[2] = {
      .answered = true, .left = false, .error = "[data] out of samples", .progress = doing(bucket(1206), true)};
  EXPECT_THAT(scene.lost(), HasSubstr("rank 2 reports: [data] out of samples"));
  EXPECT_THAT(scene.lost(), HasSubstr("rank 1 has ended without an error (rank 1 last did all_reduce #1206"));
  scene.roll_call.peers[2].left = true;
  EXPECT_THAT(scene.lost(), HasSubstr("rank 2 has ended with an error: [data] out of samples"));
}

TEST(ExplainTest, AProcessThatIsGoneHasEnded) {
  Scene scene;
  scene.roll_call.peers[1] = {.answered = false,
                              .left = false,
                              .error = "",
                              .progress = doing(bucket(1206), true),
                              .process = 4711,
                              .state = kProcessEnded};
  EXPECT_THAT(scene.lost(),
              HasSubstr("rank 1 has ended without closing its world (process 4711; rank 1 last did all_reduce #1206"));
  EXPECT_THAT(scene.lost(), HasSubstr("Look at the output of rank 1"));
  EXPECT_THAT(scene.lost(), Not(HasSubstr("not answer")));
  scene.roll_call.peers[1].state = "is stopped (state T: SIGSTOP, or Ctrl-Z)";
  EXPECT_THAT(scene.lost(), HasSubstr("rank 1 does not answer any more: its process 4711 is stopped"));
}

TEST(ExplainTest, AGroupMayHaveAnAdviceOfItsOwn) {
  Scene scene;
  scene.asker.group = "norms";
  scene.roll_call.peers[1].progress = doing(bucket(1206));
  EXPECT_THAT(scene.late(), HasSubstr("TRIREME_TIMEOUT"));
  set_advice("norms", "Call it on all ranks.");
  EXPECT_THAT(scene.late(), EndsWith("Call it on all ranks."));
  scene.roll_call.peers[2] = {};
  EXPECT_THAT(scene.late(), HasSubstr("Look at the output of rank 2")) << "a rank that is lost comes first";
  // Another rank says it to those who wait for it elsewhere.
  Scene other;
  other.roll_call.peers[2].error = scene.late() + " Call it on all ranks.";
  EXPECT_THAT(other.late(), EndsWith("Call it on all ranks."));
}

TEST(ExplainTest, AMessageConcernsItsPeerOnly) {
  Scene scene;
  scene.op = {4, "recv", 64, "Float", "activations", 2, false};
  scene.roll_call.peers[2].progress = doing({9, "send", 64, "Float", "", 5, false});
  scene.roll_call.peers[6].progress = std::nullopt;
  EXPECT_THAT(scene.late(), HasSubstr("recv #4 from rank 2 (\"activations\", 64 B)"));
  EXPECT_THAT(scene.late(), HasSubstr("rank 2 has not come (rank 2 is at send #9 to rank 5 (64 B))"));
  EXPECT_THAT(scene.late(), Not(HasSubstr("rank 6")));
}

TEST(ExplainTest, ADeadMeetingPointIsItsHost) {
  Scene scene;
  scene.roll_call.store_answers = false;
  scene.roll_call.store_host = 0;
  EXPECT_THAT(scene.lost(), HasSubstr("rank 0, which hosts the rendezvous, does not answer any more"));
  scene.roll_call.store_host_state = kProcessEnded;
  EXPECT_THAT(scene.lost(), HasSubstr("rank 0, which hosts the rendezvous, has ended without closing its world"));
  scene.roll_call.store_host_left = true;
  EXPECT_THAT(scene.lost(), HasSubstr("rank 0, which hosts the rendezvous, has ended without an error"));
  scene.roll_call.store_host_state = "";
  scene.roll_call.store_host_left = false;
  scene.roll_call.store_host = -1;
  EXPECT_THAT(scene.lost(), HasSubstr("the launcher"));
}

TEST(ProgressTest, SurvivesTheTripAsJson) {
  GroupProgress progress;
  for (int64_t number = 1; number <= 40; ++number) {
    progress.note({number, "all_reduce", number * 10, "Float", "w", -1, number < 39});
  }
  progress.note({1, "send", 8, "Half", "m", 2, false});
  progress.mark_done({40, "all_reduce", 400, "Float", "w", -1, false});
  const GroupProgress copy = progress_from_json(nlohmann::json::parse(to_json(progress).dump()));
  EXPECT_EQ(copy.collectives, 40);
  EXPECT_EQ(copy.messages, 1);
  ASSERT_EQ(copy.recent.size(), GroupProgress::kRecent);
  EXPECT_EQ(copy.last()->peer, 2);
  EXPECT_TRUE(copy.collective(40)->done);
  EXPECT_FALSE(copy.collective(39)->done);
  EXPECT_EQ(copy.collective(1), nullptr) << "long forgotten, and message #1 is no collective";
}

} // namespace
} // namespace trireme::comm
