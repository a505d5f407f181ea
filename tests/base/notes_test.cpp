#include <trireme/base/notes.h>

#include <trireme/base/stacks.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace trireme {

using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Outside the anonymous namespace, and never inlined: its name is looked for in a stack.
__attribute__((noinline)) void stand_still(std::mutex& mutex, std::condition_variable& changed, bool& stop) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return stop; });
}

namespace {

TEST(NotesTest, NestAndGoAgain) {
  EXPECT_THAT(current_notes(), IsEmpty());
  {
    const Note step("forward of micro-batch", 5);
    const Note layer("layer", 7, keep_name(std::string("ReLU")));
    const auto threads = current_notes();
    ASSERT_EQ(threads.size(), 1u);
    EXPECT_TRUE(threads[0].main);
    ASSERT_EQ(threads[0].notes.size(), 2u);
    EXPECT_EQ(describe(threads[0].notes[0]), "forward of micro-batch 5");
    EXPECT_EQ(describe(threads[0].notes[1]), "layer 7 (ReLU)");
    EXPECT_GE(threads[0].notes[0].seconds, threads[0].notes[1].seconds);
  }
  EXPECT_THAT(current_notes(), IsEmpty());
}

TEST(NotesTest, DeeperThanKeptAndManyThreadsAreSafe) {
  const std::function<void(int)> nest = [&](int depth) {
    const Note note("level", depth);
    if (depth < 40) {
      nest(depth + 1);
    } else {
      EXPECT_EQ(current_notes().at(0).notes.size(), 16u);
    }
  };
  nest(0);
  EXPECT_THAT(current_notes(), IsEmpty());
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  for (int i = 0; i < 100; ++i) { // more than there are slots
    threads.emplace_back([&] {
      while (!stop) {
        const Note note("busy", 1, "detail");
        std::this_thread::yield();
      }
    });
  }
  for (int look = 0; look < 200; ++look) {
    for (const auto& seen : current_notes()) {
      for (const auto& note : seen.notes) {
        EXPECT_EQ(note.what, "busy");
      }
    }
  }
  stop = true;
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(current_notes(), IsEmpty()) << "a thread that has ended leaves its slot";
}

TEST(StacksTest, NameTheFunctionWhereAThreadIsStuck) {
  prepare_stack_capture();
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  std::thread stuck([&] { stand_still(mutex, changed, stop); });
  std::vector<std::string> frames;
  for (int attempt = 0; attempt < 100 && frames.empty(); ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (const ThreadStack& stack : capture_stacks()) {
      const bool here = std::any_of(stack.frames.begin(), stack.frames.end(), [](const std::string& frame) {
        return frame.find("stand_still") != std::string::npos;
      });
      frames = here && !stack.main ? stack.frames : frames;
    }
  }
  EXPECT_THAT(frames, Contains(HasSubstr("trireme::stand_still(")));
  const auto own = capture_stack(getpid());
  EXPECT_TRUE(own.main);
  EXPECT_THAT(own.frames, Contains(HasSubstr("testing::Test::Run()")));
  {
    const std::lock_guard lock(mutex);
    stop = true;
  }
  changed.notify_all();
  stuck.join();
}

TEST(StacksTest, AStoppedProcessIsToldFromALivingAndADeadOne) {
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_THAT(process_state(child), HasSubstr("stopped"));
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(process_state(child), "has ended");
  EXPECT_THAT(process_state(getpid()), AnyOf("runs", "sleeps"));
}

TEST(StacksTest, ProcessesOfOneMachineAreInOnePlace) {
  int words[2];
  ASSERT_EQ(pipe(words), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string place = process_place();
    _exit(write(words[1], place.data(), place.size()) == static_cast<ssize_t>(place.size()) ? 0 : 1);
  }
  close(words[1]);
  std::string told(1000, '\0');
  told.resize(static_cast<size_t>(std::max<ssize_t>(0, read(words[0], told.data(), told.size()))));
  close(words[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(told, Not(IsEmpty()));
  EXPECT_EQ(told, process_place());
}

} // namespace
} // namespace trireme
