// What a queue makes of anything that a system may say of a request.
#include <tests/memory/aio/aio_fixture.h>

#include <trireme/memory/aio/queue.h>

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <map>
#include <thread>

namespace trireme::aio {
namespace {

using testing::HasSubstr;

class QueueTest : public testing::Test {
 protected:
  const ScratchFolder folder_{make_scratch_folder("trireme-aio")};
};

TEST_F(QueueTest, CutsTransfersIntoBlocksInOrder) {
  const File file = File::create(folder_.path / "blocks", 10 * kPage);
  Memory memory(10 * kPage);
  Queue queue(4 * kPage);
  const auto first = queue.add(file, true, 0, memory.data(), 10 * kPage);
  const auto second = queue.add(file, false, 3 * kPage, memory.data(), kPage);
  const std::vector<std::tuple<uint64_t, bool, int64_t, int64_t>> expected = {
      {first, true, 0, 4}, {first, true, 4, 4}, {first, true, 8, 2}, {second, false, 3, 1}};
  std::vector<Request> requests;
  for (const auto& [id, write, offset, pages] : expected) {
    const auto request = queue.take(false);
    ASSERT_TRUE(request);
    EXPECT_EQ(std::tuple(request->transfer, request->write, request->offset, request->bytes),
              std::tuple(id, write, offset * kPage, pages * kPage));
    EXPECT_EQ(request->memory, memory.data() + (id == first ? offset * kPage : 0));
    EXPECT_EQ(request->descriptor, file.descriptor());
    requests.push_back(*request);
  }
  EXPECT_FALSE(queue.take(false));
  // Back in another order: a transfer is finished with the last of its requests.
  queue.give_back(requests[3], kPage);
  EXPECT_TRUE(queue.finished(second));
  queue.wait(second);
  queue.give_back(requests[2], 2 * kPage);
  queue.give_back(requests[0], 4 * kPage);
  EXPECT_FALSE(queue.finished(first));
  queue.give_back(requests[1], 4 * kPage);
  EXPECT_TRUE(queue.finished(first));
  queue.wait(first);
  EXPECT_EQ(queue.bytes_written(), 10 * kPage);
  EXPECT_EQ(queue.bytes_read(), kPage);
}

/// Moves less than it is asked for, or nothing, for one reason or another. What it says that it moved, it moved; of a
/// direct file whole pages.
int64_t move_some(std::mt19937_64& random, const Request& request, bool direct) {
  switch (random() % 6) {
    case 0:
      return -EINTR;
    case 1:
      return -EAGAIN;
    case 2:
      return request.write ? 0 : -EAGAIN; // of a file to read 0 says that it ends
    case 3:
      return transfer_now(request);
    default:
      break;
  }
  const int64_t some = static_cast<int64_t>(random() % static_cast<uint64_t>(request.bytes)) + 1;
  Request part = request;
  part.bytes = direct ? some / kPage * kPage : some;
  const int64_t moved = part.bytes == 0 ? 0 : transfer_now(part);
  if (!request.write) { // of a part of a page nobody knows what is there
    std::memset(request.memory + moved, 0xee, static_cast<size_t>(request.bytes - moved));
  }
  return std::min(some, request.bytes - 1) > 0 ? std::max<int64_t>(moved, std::min(some, request.bytes - 1)) : moved;
}

TEST_F(QueueTest, ContinuesWhatWasMovedInPart) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const bool direct = seed % 2 == 0;
    const int64_t pages = 1 + static_cast<int64_t>(random() % 40);
    const File file = File::create(folder_.path / "parts", pages * kPage, direct);
    Memory there(pages * kPage);
    Memory back(pages * kPage);
    fill_pattern(there.data(), there.size(), seed);
    Queue queue(kPage * (1 + static_cast<int64_t>(random() % 6)));
    for (const bool write : {true, false}) {
      std::vector<uint64_t> ids;
      for (int64_t begin = 0; begin < pages; begin += 7) {
        ids.push_back(queue.add(file, write, begin * kPage, (write ? there : back).data() + begin * kPage,
                                std::min<int64_t>(7, pages - begin) * kPage));
      }
      std::vector<Request> taken; // finished in any order
      while (true) {
        const auto request = taken.size() < 5 ? queue.take(false) : std::nullopt;
        if (request) {
          taken.push_back(*request);
          continue;
        }
        if (taken.empty()) {
          break;
        }
        std::swap(taken[random() % taken.size()], taken.back());
        const Request next = taken.back();
        taken.pop_back();
        queue.give_back(next, move_some(random, next, file.direct()));
      }
      for (const auto id : ids) {
        queue.wait(id);
      }
    }
    const auto plain = plain_bytes(file.path());
    EXPECT_EQ(std::memcmp(plain.data(), there.data(), plain.size()), 0);
    EXPECT_EQ(std::memcmp(back.data(), there.data(), plain.size()), 0);
    EXPECT_EQ(queue.bytes_read(), pages * kPage);
    EXPECT_EQ(queue.bytes_written(), pages * kPage);
  }
}

TEST_F(QueueTest, StopsATransferThatFailsAndNoOther) {
  const File file = File::create(folder_.path / "fails", 20 * kPage);
  Memory memory(20 * kPage);
  Queue queue(4 * kPage);
  const auto bad = queue.add(file, true, 0, memory.data(), 20 * kPage);
  const auto good = queue.add(file, false, 0, memory.data(), 4 * kPage);
  const Request one = *queue.take(false);
  const Request two = *queue.take(false);
  const Request three = *queue.take(false);
  queue.give_back(one, kPage); // goes on later
  queue.give_back(two, -EIO);
  EXPECT_FALSE(queue.finished(bad)) << "the third may still write from its memory";
  const Request other = *queue.take(false);
  EXPECT_EQ(other.transfer, good) << "what is left of the one that failed is not begun";
  EXPECT_FALSE(queue.take(false));
  queue.give_back(three, -ENOSPC);
  EXPECT_TRUE(queue.finished(bad));
  queue.give_back(other, 4 * kPage);
  queue.wait(good);
  const std::string error = error_of([&] { queue.wait(bad); });
  EXPECT_THAT(error, HasSubstr(concat("cannot write ", 4 * kPage, " bytes at offset ", 4 * kPage, " of ",
                                      file.path().string(), ": Input/output error, ")));
  EXPECT_THAT(error, HasSubstr(concat(" are free in ", folder_.path.string())));
  EXPECT_TRUE(queue.wait_for_all().empty()) << "reported before";
  queue.add(file, true, 0, memory.data(), kPage);
  queue.give_back(*queue.take(false), -ENOSPC);
  const auto left = queue.wait_for_all();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_THAT(left[0], HasSubstr("No space left on device"));
}

TEST_F(QueueTest, GivesUpWhereTheSystemGoesOnRefusing) {
  const File file = File::create(folder_.path / "refused", kPage);
  Memory memory(kPage);
  for (const auto& [result, reason] :
       std::map<int64_t, std::string>{{-EAGAIN, "Resource temporarily unavailable"},
                                      {-EINTR, "Interrupted system call"},
                                      {0, "the system moved 0 bytes, again and again"}}) {
    Queue queue(kPage);
    const auto id = queue.add(file, true, 0, memory.data(), kPage);
    int times = 0;
    for (auto request = queue.take(false); request; request = queue.take(false)) {
      queue.give_back(*request, result);
      ASSERT_LT(++times, 100000);
    }
    EXPECT_GT(times, 100);
    EXPECT_THAT(error_of([&] { queue.wait(id); }), HasSubstr(reason));
  }
}

TEST_F(QueueTest, LetsThreadsGoWhenItIsClosed) {
  Queue queue(kPage);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] { EXPECT_FALSE(queue.take(true)); });
  }
  queue.close();
  for (auto& thread : threads) {
    thread.join();
  }
}

} // namespace
} // namespace trireme::aio
