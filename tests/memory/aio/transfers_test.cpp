// Transfers are what a plain file says, with both engines, through the page cache and beside it.
#include <tests/memory/aio/aio_fixture.h>
#include <tests/support/other_user.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

namespace trireme::aio {
namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(All, Engines, testing::Combine(testing::Bool(), testing::Bool()), engine_name);

int64_t any_of_up_to(std::mt19937_64& random, int64_t most) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(most)) + 1;
}

/// Cuts [0, pages) into pieces of any size.
std::vector<std::pair<int64_t, int64_t>> pieces_of(std::mt19937_64& random, int64_t pages, int64_t largest) {
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (int64_t begin = 0; begin < pages;) {
    const int64_t length = std::min(pages - begin, any_of_up_to(random, largest));
    pieces.emplace_back(begin, length);
    begin += length;
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

TEST_P(Engines, TransferWhatAPlainFileSays) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int64_t pages = any_of_up_to(random, 300);
    const Options options{kPage * any_of_up_to(random, 17), any_of_up_to(random, 9), any_of_up_to(random, 4),
                          random() % 2 == 0, random() % 2 == 0};
    const File file = file_of(pages * kPage);
    Memory there(pages * kPage);
    Memory back(pages * kPage);
    Transfers transfers(options, uring());
    EXPECT_STREQ(transfers.engine(), uring() ? "io_uring" : "threads");
    if (random() % 2 == 0) {
      transfers.add_buffer(back.data(),
                           back.size() / 2 / kPage * kPage); // some transfers lie in it, some do not, some half
    }
    for (int round = 0; round < 2; ++round) {
      fill_pattern(there.data(), there.size(), seed * 10 + static_cast<uint64_t>(round));
      std::vector<Transfers::Id> ids;
      for (const auto& [begin, length] : pieces_of(random, pages, 40)) {
        ids.push_back(transfers.write(file, begin * kPage, there.data() + begin * kPage, length * kPage));
      }
      std::shuffle(ids.begin(), ids.end(), random);
      for (const auto id : ids) {
        transfers.wait(id);
        EXPECT_TRUE(transfers.finished(id));
      }
      const auto plain = plain_bytes(file.path());
      ASSERT_EQ(std::ssize(plain), pages * kPage);
      ASSERT_EQ(std::memcmp(plain.data(), there.data(), plain.size()), 0);
      // Read to other places than they came from: what lies at the front of the file goes to the back.
      std::memset(back.data(), 0, static_cast<size_t>(back.size()));
      ids.clear();
      for (const auto& [begin, length] : pieces_of(random, pages, 40)) {
        ids.push_back(
            transfers.read(file, begin * kPage, back.data() + (pages - begin - length) * kPage, length * kPage));
        for (int64_t page = 0; page < length; ++page) { // where each page of this piece must be
          std::memcpy(there.data() + (pages - begin - length + page) * kPage, plain.data() + (begin + page) * kPage,
                      kPage);
        }
      }
      for (const auto id : ids) {
        transfers.wait(id);
      }
      ASSERT_EQ(std::memcmp(back.data(), there.data(), plain.size()), 0);
    }
    EXPECT_EQ(transfers.bytes_read(), 2 * pages * kPage);
    EXPECT_EQ(transfers.bytes_written(), 2 * pages * kPage);
  }
}

TEST_P(Engines, GoOnWithoutTheCaller) {
  const int64_t bytes = 256 * kPage;
  const File file = file_of(bytes);
  Memory memory(bytes);
  Transfers transfers({kPage, 2, 1}, uring());
  for (int64_t round = 1; round <= 3; ++round) {     // the second one finds the engine asleep
    transfers.read(file, 0, memory.data(), bytes);   // 128 times as many requests as are in the system at a time
    while (transfers.bytes_read() < round * bytes) { // asks for nothing: the test's deadline ends what does not go on
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

TEST_P(Engines, HoldManyTransfersAndAnyOrderOfWaiting) {
  const int64_t pages = 1500;
  const File file = file_of(pages * kPage);
  Memory there(pages * kPage);
  Memory back(pages * kPage);
  fill_pattern(there.data(), there.size(), 3);
  Transfers transfers({kPage, 32, 3}, uring());
  std::vector<Transfers::Id> ids;
  for (int64_t page = 0; page < pages; ++page) {
    ids.push_back(transfers.write(file, page * kPage, there.data() + page * kPage, kPage));
  }
  std::for_each(ids.rbegin(), ids.rend(), [&](auto id) { transfers.wait(id); });
  ids.clear();
  for (int64_t page = pages; page-- > 0;) {
    ids.push_back(transfers.read(file, page * kPage, back.data() + page * kPage, kPage));
  }
  transfers.wait(ids.back());
  transfers.wait(ids.front());
  for (const auto id : ids) {
    while (!transfers.finished(id)) {
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(std::memcmp(there.data(), back.data(), static_cast<size_t>(there.size())), 0);
}

TEST_P(Engines, AreSafeForThreads) {
  const int64_t pages = 64;
  const int workers = 4;
  const File file = file_of(workers * pages * kPage);
  Transfers transfers({4 * kPage, 4, 2}, uring());
  std::vector<std::thread> threads;
  std::vector<int> wrong(workers, 0);
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      Memory there(pages * kPage);
      Memory back(pages * kPage);
      transfers.add_buffer(there.data(), there.size());
      for (uint64_t round = 0; round < 20; ++round) {
        fill_pattern(there.data(), there.size(), round * workers + static_cast<uint64_t>(worker));
        const int64_t offset = worker * pages * kPage;
        transfers.wait(transfers.write(file, offset, there.data(), there.size()));
        transfers.wait(transfers.read(file, offset, back.data(), back.size()));
        wrong[static_cast<size_t>(worker)] +=
            std::memcmp(there.data(), back.data(), static_cast<size_t>(there.size())) != 0;
      }
      transfers.remove_buffer(there.data());
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(workers, 0));
}

TEST_P(Engines, FinishWhatWasBegunWhenTheyEnd) {
  const int64_t bytes = 400 * kPage;
  Memory there(bytes);
  Memory back(bytes);
  fill_pattern(there.data(), bytes, 5);
  std::filesystem::path path;
  {
    Transfers transfers({2 * kPage, 3, 2}, uring());
    auto file = std::make_unique<File>(file_of(bytes));
    path = file->path();
    transfers.write(*file, 0, there.data(), bytes);
    file.reset(); // the transfers keep it open
  }
  {
    Transfers transfers({2 * kPage, 3, 2}, uring());
    transfers.read(File::open(path, direct()), 0, back.data(), bytes);
  }
  EXPECT_EQ(std::memcmp(there.data(), back.data(), static_cast<size_t>(bytes)), 0);
}

TEST_P(Engines, SayThatAFileEndsTooEarlyAndGoOnWithOthers) {
  const int64_t pages = 40;
  const File whole = file_of(pages * kPage, "whole");
  const File cut = file_of(pages * kPage, "cut");
  for (const int64_t end : {10 * kPage, 10 * kPage + 100, 9 * kPage + 512}) {
    SCOPED_TRACE(end);
    std::filesystem::resize_file(cut.path(), static_cast<uintmax_t>(end));
    Memory memory(3 * pages * kPage);
    Transfers transfers({4 * kPage, 4, 2}, uring());
    const auto first = transfers.read(cut, 0, memory.data(), 8 * kPage);
    const auto bad = transfers.read(cut, 0, memory.data(), pages * kPage);
    const auto other = transfers.read(whole, 0, memory.data() + pages * kPage, pages * kPage);
    const auto behind = transfers.read(cut, 20 * kPage, memory.data() + 2 * pages * kPage, kPage);
    const std::string error = error_of([&] { transfers.wait(bad); });
    EXPECT_THAT(error, HasSubstr(concat("cannot read ")));
    EXPECT_THAT(error, HasSubstr(concat("of ", cut.path().string(), ": the file ends after ", end, " bytes")));
    EXPECT_EQ(error_of([&] { transfers.wait(bad); }), error) << "asked again";
    EXPECT_TRUE(transfers.finished(bad));
    EXPECT_THAT(error_of([&] { transfers.wait(behind); }), HasSubstr(concat("at offset ", 20 * kPage, " of ")));
    transfers.wait(first);
    transfers.wait(other);
  }
}

TEST_P(Engines, SayThatAFileIsOnlyToRead) {
  const test::OtherUser user; // root may write every file
  if (!user.exists()) {
    GTEST_SKIP() << "no other user can be had";
  }
  const ScratchFolder mine(make_scratch_folder("trireme-aio"));
  File::create(mine.path / "file", 8 * kPage);
  std::filesystem::permissions(mine.path / "file", std::filesystem::perms::owner_read);
  const File file = File::open(mine.path / "file", direct());
  Memory memory(8 * kPage);
  Transfers transfers({kPage, 4, 2}, uring());
  const auto write = transfers.write(file, 0, memory.data(), 8 * kPage);
  const auto read = transfers.read(file, 0, memory.data(), 8 * kPage);
  EXPECT_THAT(error_of([&] { transfers.wait(write); }),
              testing::AllOf(HasSubstr("cannot write 4096 bytes at offset "), HasSubstr("Bad file descriptor"),
                             HasSubstr("read-only")));
  transfers.wait(read);
}

TEST_P(Engines, RefuseWhatIsNotAligned) {
  const File file = file_of(8 * kPage);
  Memory memory(8 * kPage);
  Transfers transfers({}, uring());
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { transfers.read(file, 512, memory.data(), kPage); },
                                          [&] { transfers.read(file, 0, memory.data() + 512, kPage); },
                                          [&] { transfers.write(file, 0, memory.data(), 100); },
                                          [&] { transfers.write(file, -kPage, memory.data(), kPage); }}) {
    EXPECT_THAT(error_of(call), HasSubstr("multiples of 4096 are needed"));
  }
  EXPECT_THAT(error_of([&] { transfers.wait(7); }), HasSubstr("cannot wait for transfer 7; transfers started: 0"));
  transfers.wait(transfers.read(file, 0, memory.data(), 0));
}

TEST_P(Engines, ForgetABufferThatIsRemoved) {
  const int64_t bytes = 512 * kPage;
  const File file = file_of(bytes);
  Transfers transfers({16 * kPage, 4, 2}, uring());
  void* place = nullptr;
  for (uint64_t round = 0; round < 3; ++round) { // new memory at the same address: other pages than the kernel knew
    void* memory = ::mmap(place, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | (place == nullptr ? 0 : MAP_FIXED), -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    place = memory;
    const bool kept = transfers.add_buffer(memory, bytes);
    if (!uring()) {
      EXPECT_FALSE(kept);
    }
    fill_pattern(static_cast<std::byte*>(memory), bytes, round);
    transfers.wait(transfers.write(file, 0, memory, bytes));
    std::vector<char> expected(static_cast<char*>(memory), static_cast<char*>(memory) + bytes);
    EXPECT_TRUE(plain_bytes(file.path()) == expected) << round;
    std::memset(memory, 0, static_cast<size_t>(bytes));
    transfers.wait(transfers.read(file, 0, memory, bytes));
    EXPECT_EQ(std::memcmp(memory, expected.data(), expected.size()), 0) << round;
    transfers.remove_buffer(memory);
  }
  ::munmap(place, static_cast<size_t>(bytes));
}

} // namespace
} // namespace trireme::aio
