#include <trireme/launch/last_words.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::launch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::string kRankOneFailed =
    "[comm] all_reduce #6 (\"gradients\", 4.00 kB) in group \"world\" failed on rank 0 of 4: rank 1 has ended with an "
    "error: an exception "
    "ended it; see its output. Look at the output of rank 1; restart from the last checkpoint.";

TEST(LastWordsTest, BlamesWhomTheAdviceNames) {
  const Blame blame = blame_in({"step 5", kRankOneFailed, "bye"}, 0, 4);
  EXPECT_TRUE(blame.others);
  EXPECT_THAT(blame.ranks, ElementsAre(1));
  EXPECT_THAT(
      blame_in({"terminate called after throwing an instance of 'trireme::PeerError'", "  what():  " + kRankOneFailed},
               0, 4)
          .ranks,
      ElementsAre(1));
  EXPECT_THAT(blame_in({"[rank 2] error: [comm] recv #1 failed on rank 2 of 4: ranks 1, 0 and 3 do not answer any "
                        "more: killed (rank 3 waits for rank 2). Look at the "
                        "output of ranks 1, 0 and 3 and for a lack of memory on that host."},
                       2, 4)
                  .ranks,
              ElementsAre(1, 0, 3));
}

TEST(LastWordsTest, BlamesAllThatAreNamedWithoutAnAdvice) {
  EXPECT_THAT(
      blame_in({"[comm] ranks 2 and 3 have not come within 60 s; 2 of 4 ranks are connected. Look at the output of "
                "the missing ones."},
               0, 4)
          .ranks,
      ElementsAre(2, 3));
  EXPECT_THAT(blame_in({"[comm] rank 3 of 4: nobody listens on 127.0.0.1:4711, so rank 0 has not come."}, 3, 4).ranks,
              ElementsAre(0));
}

TEST(LastWordsTest, NobodyIsBlamedByOtherWords) {
  for (const char* line : {"rank 1 is slow", "ValueError: rank 1", "[comm] a tensor of rank 0 has no elements.",
                           "[comm] rank 9 has ended.", "[comm] frank 1 and ranking 2", ""}) {
    EXPECT_FALSE(blame_in({line}, 0, 4).others) << line;
  }
  EXPECT_FALSE(blame_in({}, 0, 4).others);
}

TEST(LastWordsTest, ALostConnectionBlamesSomebody) {
  const std::deque<std::string> lines = {
      "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"};
  EXPECT_TRUE(blame_in(lines, 0, 2).others);
  EXPECT_THAT(blame_in(lines, 0, 2).ranks, IsEmpty());
  EXPECT_FALSE(blame_in(lines, 0, 1).others) << "there is nobody else";
}

// Whatever a rank has said of others before, its last words are why it ended.
TEST(LastWordsTest, AnOwnErrorBelowBlamesNobody) {
  const std::string warning =
      "[rank 1] warning: [comm] all_reduce #9 waits for 60 s on rank 1 of 2: rank 0 has not come. Look at the output "
      "of rank 0.";
  const std::string error =
      "[rank 1] error: [comm] recv #1 failed on rank 1 of 2: rank 0 does not answer. Look at the output of rank 0.";
  for (const std::string& before : {warning, error, std::string("[W socket.cpp:460] Connection reset by peer")}) {
    EXPECT_FALSE(blame_in({before, "[rank 1] error: [data] train.bin cannot be read: I/O error."}, 1, 2).others)
        << before;
  }
  EXPECT_TRUE(blame_in({error, "[DataParallel] the model has no parameters."}, 1, 2).others)
      << "what a main() has printed cannot be told from a program's log";
  EXPECT_FALSE(blame_in({error, "terminate called after throwing an instance of 'std::runtime_error'",
                         "  what():  no such column"},
                        1, 2)
                   .others);
  EXPECT_FALSE(
      blame_in({error, "Traceback (most recent call last):", "  File \"a.py\", line 1", "KeyError: 7"}, 1, 2).others);
  EXPECT_FALSE(
      blame_in({error, "shapes differ",
                "Exception raised from meta at LinearAlgebra.cpp:194 (most recent call first):", "frame #0: f"},
               1, 2)
          .others);
  EXPECT_FALSE(blame_in({warning, "no such column"}, 1, 2).others) << "after a warning the program goes on";
  EXPECT_TRUE(blame_in({warning, error, "no such column"}, 1, 2).others);
  EXPECT_TRUE(blame_in({"[rank 1] error: [data] one file is left out.", error}, 1, 2).others) << "the other way round";
  EXPECT_TRUE(blame_in({"remote process exited or there was a network error",
                        "Traceback (most recent call last):", "  f()", "RuntimeError: aborted"},
                       1, 2)
                  .others)
      << "of a library that says why in its log only";
}

TEST(LastWordsTest, FindsTheException) {
  EXPECT_EQ(exception_in({"terminate called after throwing an instance of 'c10::Error'",
                          "  what():  mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
                          "Exception raised from meta at LinearAlgebra.cpp:194 (most recent call first):",
                          "frame #0: c10::Error (and 30 more frames)", ""}),
            "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)");
  EXPECT_EQ(exception_in({"Traceback (most recent call last):", "  File \"a.py\", line 3, in <module>", "    f()",
                          "ValueError: no such column"}),
            "ValueError: no such column");
  EXPECT_EQ(exception_in({"[rank1]: Traceback (most recent call last):",
                          "[rank1]:   File \"a.py\", line 3, in <module>", "[rank1]: ValueError: no such column"}),
            "ValueError: no such column");
  EXPECT_EQ(exception_in({"step 5", "[rank 1] error: [data] the file is empty. Write one.", ""}),
            "[data] the file is empty. Write one.");
  EXPECT_EQ(exception_in({"step 5", "[data] the file is empty. Write one.", "step 6, which stdout kept"}),
            "[data] the file is empty. Write one.");
  EXPECT_EQ(exception_in({"[DataParallel] 2 parameters have no gradient. Use them."}),
            "[DataParallel] 2 parameters have no gradient. Use them.");
  EXPECT_EQ(exception_in({"[rank 1] error: [sync_batch_norm] layer \"bn\" has one value."}),
            "[sync_batch_norm] layer \"bn\" has one value.");
  EXPECT_EQ(exception_in({"  what():  " + std::string(1000, 'x')}), std::string(300, 'x') + "...");
}

// libtorch's what() has a stack behind the message.
TEST(LastWordsTest, FindsAnExceptionOfLibtorchThatMainPrints) {
  const std::string raised = "Exception raised from meta at LinearAlgebra.cpp:194 (most recent call first):";
  const std::string frames = "frame #0: c10::Error (and 30 more frames)";
  EXPECT_EQ(exception_in({"step 5", "shapes cannot be multiplied (2x5 and 4x1)", raised, frames, ""}),
            "shapes cannot be multiplied (2x5 and 4x1)");
  EXPECT_EQ(
      exception_in({"step 5", "[rank 1] error: shapes cannot be multiplied", raised, frames, "", "step 6", "step 7"}),
      "shapes cannot be multiplied");
  EXPECT_EQ(exception_in({"caught", raised, frames, "", "step 6", "step 7", "step 8", "step 9", "step 10"}), "");
  EXPECT_EQ(exception_in({"  what():  the interpreter failed", "Traceback of TorchScript:", "RuntimeError: shapes",
                          raised, frames}),
            "the interpreter failed");
  EXPECT_EQ(exception_in({raised, frames}), "");
  EXPECT_EQ(exception_in({"caught", raised, frames, "", "[data] the file is empty."}), "caught")
      << "the later one may be of a program's log";
  EXPECT_EQ(exception_in({"caught", raised, frames, "", "[rank 1] error: [data] the file is empty."}),
            "[data] the file is empty.");
}

// A line of a program's log may look like an error.
TEST(LastWordsTest, ALogLineOfAProgramHidesNoBlame) {
  const std::deque<std::string> lines = {
      "[rank 1] error: [comm] all_reduce #3 failed: rank 0 has ended. Look at the output of rank 0.",
      "[Trainer] Stopped after 12 steps."};
  EXPECT_THAT(blame_in(lines, 1, 2).ranks, testing::ElementsAre(0));
  EXPECT_THAT(blame_in({lines[0], "[trainer] Stopped after 12 steps."}, 1, 2).ranks, testing::ElementsAre(0));
  EXPECT_THAT(blame_in({lines[0], "[data] closed 3 files."}, 1, 2).ranks, testing::ElementsAre(0));
  EXPECT_EQ(exception_in({"[rank 1] error: [data parallel] rank 1 built another model."}),
            "[data parallel] rank 1 built another model.");
}

TEST(LastWordsTest, ALogLineOfAProgramHidesNoException) {
  const std::string log = "[Trainer] Stopped after 12 steps.";
  const std::string own = "[rank 1] error: [data] train.bin cannot be read.";
  EXPECT_EQ(exception_in({"Traceback (most recent call last):", "  File \"a.py\", line 1", "KeyError: 7", log}),
            "KeyError: 7");
  EXPECT_EQ(exception_in({own, log}), "[data] train.bin cannot be read.");
  EXPECT_FALSE(
      blame_in({"[comm] recv #1 failed: rank 0 has ended. Look at the output of rank 0.", own, log}, 1, 2).others);
  EXPECT_EQ(exception_in({"step 5", log}), log) << "nothing else is known";
  const std::string of_another = "[comm] barrier #2 failed: rank 2 has ended with an error: [comm] recv #1 failed.";
  EXPECT_EQ(exception_in({of_another}), of_another);
  EXPECT_EQ(exception_in({"[trireme-rank] the token is wrong."}), "[trireme-rank] the token is wrong.");
}

TEST(LastWordsTest, OrdinaryLinesAreNoException) {
  EXPECT_EQ(exception_in({"[rank 1] error: [checkpoint] failed, training goes on.", "step 5", "step 6", "step 7",
                          "step 8", "step 9"}),
            "");
  EXPECT_EQ(exception_in({"[train] step 5"}), "");
  for (const char* line : {"[INFO] the model is saved.", "[Warning] few samples.", "[2026] begun.", "[ x ] done.",
                           "[] done.", "[rank 1] all is well."}) {
    EXPECT_EQ(exception_in({line}), "") << line;
  }
  EXPECT_EQ(exception_in({"Traceback (most recent call last):", "  File \"a.py\", line 3, in <module>"}), "");
  EXPECT_EQ(exception_in({}), "");
}

} // namespace
} // namespace trireme::launch
