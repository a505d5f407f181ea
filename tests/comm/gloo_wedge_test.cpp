// What happens when gloo's own thread dies with gloo's locks (terminate_guard.h), without gloo.
#include <trireme/comm/gloo/gloo_pending.h>

#include "tests/support/run_ranks.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

namespace trireme::comm {
namespace {

using testing::IsEmpty;

/// An operation that gloo never ends.
class EndlessWork : public c10d::Work {
 public:
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_ = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
};

TEST(GlooWedgeTest, AThreadThatDiesWhileConnectionsAreBrokenHoldsUpNobody) {
  test::RunOptions options;
  options.deadline = std::chrono::milliseconds(20'000);
  EXPECT_THAT(test::run_processes(
                  1,
                  [](int) {
                    auto shared = std::make_shared<GlooShared>();
                    auto* of_gloo = new std::mutex; // who waits for it never ends
                    std::promise<void> breaking;
                    shared->break_context = [&breaking, of_gloo] {
                      breaking.set_value();
                      of_gloo->lock();
                    };
                    of_gloo->lock();
                    std::thread dying([&] {
                      breaking.get_future().wait();
                      shared->wedge();
                    });
                    auto pending = std::make_unique<GlooCollective>(c10::make_intrusive<EndlessWork>(), shared,
                                                                    Deadline::clock::now(), nullptr);
                    EXPECT_THROW(pending->wait(), Trouble);
                    pending.reset();
                    dying.join();
                    EXPECT_TRUE(shared->wedged);
                  },
                  options),
              IsEmpty());
}

TEST(GlooWedgeTest, ConnectionsAreBrokenOnceForAll) {
  EXPECT_THAT(test::run_processes(1,
                                  [](int) {
                                    auto shared = std::make_shared<GlooShared>();
                                    std::atomic<int> calls{0};
                                    shared->break_context = [&] { ++calls; };
                                    for (int i = 0; i < 3; ++i) {
                                      std::unique_lock lock(shared->mutex);
                                      shared->break_connections(lock);
                                      EXPECT_TRUE(lock.owns_lock());
                                      EXPECT_EQ(calls, 1);
                                    }
                                  }),
              IsEmpty());
}

} // namespace
} // namespace trireme::comm
