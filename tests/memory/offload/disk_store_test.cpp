// A store in files: whatever is asked of it in whatever order, it gives what was left there.
#include "stored.h"

#include <trireme/base/notes.h>
#include <trireme/monitor/chrome_trace.h>

#include <gmock/gmock.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>

namespace trireme::offload {
namespace {

using testing::HasSubstr;

constexpr int64_t kBlock = aio::kAlignment;

/// What a bucket has, bytes of each array.
using Parts = std::vector<at::Tensor>;

Parts copies(const Parts& parts) {
  Parts made;
  for (const at::Tensor& part : parts) {
    made.push_back(part.clone());
  }
  return made;
}

bool equal(const Parts& a, const Parts& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) {
    same = at::equal(a[i], b[i]);
  }
  return same;
}

/// Calls with random buckets beside a plain copy of everything. Tensors that are held for a while must keep what they
/// had.
class Chance {
 public:
  Chance(DiskStore& store, uint32_t seed) : store_(store), random_(seed) {}

  void add() {
    const std::vector<at::ScalarType> types = {at::kFloat, at::kBFloat16, at::kByte, at::kFloat};
    std::vector<bucket::StoredArray> arrays;
    const int buckets = below(6) + 1;
    for (int i = below(3) + 1; i > 0; --i) {
      bucket::StoredArray& array = arrays.emplace_back(
          bucket::StoredArray{types[static_cast<size_t>(below(4))], static_cast<double>(below(3)), {}});
      for (int b = 0; b < buckets; ++b) {
        array.numel.push_back(below(8) == 0 ? 0 : below(3000));
      }
    }
    const int64_t buffer = store_.add(arrays, at::kCPU);
    for (int b = 0; b < buckets; ++b) {
      Parts parts;
      for (const bucket::StoredArray& array : arrays) {
        parts.push_back(at::full({array.numel[static_cast<size_t>(b)]}, array.initial, array.type));
      }
      expected_[{buffer, b}] = parts;
    }
  }
  void call() {
    auto place = expected_.begin();
    std::advance(place, below(static_cast<int>(expected_.size())));
    const auto [buffer, bucket] = place->first;
    switch (below(6)) {
      case 0:
        store_.prefetch(buffer, bucket);
        break;
      case 1: {
        std::erase_if(held_,
                      [&, key = place->first](const Held& held) { return held.key == key; }); // its memory may be taken
        store_.forget(buffer, bucket);
        store_.use(buffer, bucket, true, [&](const Parts& parts) { change(parts, place->second); });
        break;
      }
      case 2:
      case 3: {
        std::erase_if(held_,
                      [&, key = place->first](const Held& held) { return held.key == key; }); // it sees the change
        store_.use(buffer, bucket, true, [&](const Parts& parts) {
          ASSERT_TRUE(equal(parts, place->second)) << "buffer " << buffer << ", bucket " << bucket;
          change(parts, place->second);
        });
        break;
      }
      default:
        store_.use(buffer, bucket, false, [&](const Parts& parts) {
          ASSERT_TRUE(equal(parts, place->second)) << "buffer " << buffer << ", bucket " << bucket;
          if (below(3) == 0) {
            held_.push_back({place->first, parts, place->second});
          }
        });
    }
    while (!held_.empty() && below(4) == 0) {
      EXPECT_TRUE(equal(held_.front().parts, held_.front().expected))
          << "memory of tensors that are still there was used again";
      held_.pop_front();
    }
  }

 private:
  using Key = std::pair<int64_t, int64_t>;
  struct Held {
    Key key;
    Parts parts;
    Parts expected;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  void change(const Parts& parts, Parts& expected) {
    for (const at::Tensor& part : parts) {
      at::Tensor(part).copy_(at::arange(part.numel()).mul(below(7)).add(below(100)).remainder(251));
    }
    expected = copies(parts);
  }

  DiskStore& store_;
  std::mt19937 random_;
  std::map<Key, Parts> expected_;
  std::deque<Held> held_;
};

TEST(DiskStoreTest, GivesWhatWasLeftThereInAnyOrder) {
  for (uint32_t seed = 0; seed < 24; ++seed) {
    Stored stored({.kind = "optimizer states",
                   .buffers = 3 + seed % 3,
                   .pipeline_read = (seed & 1) != 0,
                   .pipeline_write = (seed & 2) != 0,
                   .fast_init = (seed & 4) != 0,
                   .elements_in_memory = seed % 5 == 4 ? 4000 : 0});
    Chance chance(stored.store, seed);
    chance.add();
    chance.add();
    for (int i = 0; i < 300; ++i) {
      chance.call();
      if (i == 100) {
        chance.add(); // its buckets may be larger than all before
      }
    }
  }
}

/// Steps as an optimizer does: each bucket in order, the next one named ahead, the first after the last.
void step_all(DiskStore& store, int64_t buffer, int buckets, int step) {
  for (int b = 0; b < buckets; ++b) {
    store.use(buffer, b, true, [&](const Parts& parts) {
      store.prefetch(buffer, (b + 1) % buckets);
      EXPECT_EQ(parts.front()[0].item<double>(), step);
      for (const at::Tensor& part : parts) {
        at::Tensor(part).add_(1);
      }
    });
  }
}

// Of N buckets in turn, all are read and written in a step, or none is read if all have memory.
TEST(DiskStoreTest, BytesReadAndWrittenAreThoseOfTheClosedForm) {
  constexpr int64_t kNumel = 1500; // 6000 bytes: two blocks
  for (const bool pipelined : {true, false}) {
    for (const int buckets : {3, 4, 5, 9}) {
      Stored stored({.kind = "optimizer states",
                     .buffers = 4,
                     .pipeline_read = pipelined,
                     .pipeline_write = pipelined,
                     .fast_init = true});
      const int64_t buffer = stored.store.add(equal_arrays(2, buckets, kNumel), at::kCPU);
      EXPECT_EQ(stored.traffic->written, 0);
      step_all(stored.store, buffer, buckets, 0);
      const int64_t bytes = int64_t{buckets} * 2 * 2 * kBlock;
      for (int step = 1; step < 5; ++step) {
        const Traffic before = *stored.traffic;
        step_all(stored.store, buffer, buckets, step);
        EXPECT_EQ(stored.traffic->read - before.read, buckets <= 4 ? 0 : bytes) << buckets << " buckets";
        EXPECT_EQ(stored.traffic->written - before.written, bytes) << buckets << " buckets";
      }
    }
  }
}

TEST(DiskStoreTest, WithoutFastInitAllIsWrittenOnceAtTheStart) {
  Stored stored({.kind = "optimizer states", .fast_init = false});
  const int64_t buffer = stored.store.add(equal_arrays(3, 7, 1024), at::kCPU);
  EXPECT_EQ(stored.traffic->written, 3 * 7 * kBlock);
  EXPECT_EQ(read(stored.store, buffer, 5), 0);
  EXPECT_EQ(stored.traffic->read, 3 * kBlock);
}

TEST(DiskStoreTest, ReadingOnlyWritesNothing) {
  Stored stored({.kind = "optimizer states", .buffers = 3, .fast_init = true});
  const int64_t buffer = stored.store.add(equal_arrays(1, 6, 1024), at::kCPU);
  for (int b = 0; b < 6; ++b) {
    write(stored.store, buffer, b, b + 1);
  }
  const int64_t written = stored.traffic->written;
  for (int b = 0; b < 6; ++b) {
    EXPECT_EQ(read(stored.store, buffer, b), b + 1);
  }
  EXPECT_EQ(stored.traffic->written, written);
}

TEST(DiskStoreTest, MemoryIsThatOfItsBuffersHoweverManyBuckets) {
  Stored stored({.kind = "optimizer states", .buffers = 3, .fast_init = true});
  const int64_t buffer = stored.store.add(equal_arrays(2, 50, 2048), at::kCPU);
  const int64_t largest = 2 * 2 * kBlock;
  for (int step = 0; step < 2; ++step) {
    step_all(stored.store, buffer, 50, step);
    EXPECT_EQ(stored.store.buffer_bytes(), 3 * largest);
  }
  std::vector<Parts> held;
  for (int b = 0; b < 20; ++b) {
    stored.store.use(buffer, b, false, [&](const Parts& parts) { held.push_back(parts); });
  }
  EXPECT_EQ(stored.store.buffer_bytes(), 20 * largest) << "what a caller holds is not used again";
  held.clear();
  step_all(stored.store, buffer, 50, 2);
  EXPECT_EQ(stored.store.buffer_bytes(), 3 * largest);
  for (int b = 0; b < 20; ++b) {
    stored.store.use(buffer, b, true, [&](const Parts& parts) { held.push_back(parts); });
  }
  held.clear();
  for (int b = 0; b < 50; ++b) {
    write(stored.store, buffer, b, 4);
  }
  EXPECT_EQ(stored.store.buffer_bytes(), 3 * largest)
      << "memory that was there for a while goes, also if what it has was changed";
}

// One bucket much larger than the others, as a vocabulary's: only one buffer has its size. Buckets come in any order,
// and more than the largest at once.
TEST(DiskStoreTest, BuffersHaveTheSizesOfTheLargestBuckets) {
  for (const bool pipelined : {false, true}) {
    Stored stored({.kind = "optimizer states",
                   .buffers = 4,
                   .pipeline_read = pipelined,
                   .pipeline_write = pipelined,
                   .fast_init = true});
    std::vector<int64_t> numel(9, 1024);
    numel[3] = 16 * 1024;
    numel[6] = 2 * 1024;
    const int64_t buffer = stored.store.add({{at::kFloat, 0, numel}}, at::kCPU);
    const int64_t all = (16 + 2 + 1 + 1) * kBlock;
    for (int step = 0; step < 3; ++step) {
      step_all(stored.store, buffer, 9, step);
      EXPECT_EQ(stored.store.buffer_bytes(), all);
    }
    const int64_t read_before = stored.traffic->read;
    for (const int bucket : {3, 0, 6, 1}) {
      stored.store.prefetch(buffer, bucket);
    }
    for (const int bucket : {3, 0, 6, 1}) {
      EXPECT_EQ(read(stored.store, buffer, bucket), read(stored.store, buffer, bucket));
    }
    EXPECT_LE(stored.traffic->read - read_before, (16 + 1 + 2 + 1) * kBlock) << "any four buckets have memory together";
    const int64_t other = stored.store.add({{at::kFloat, 0, {32 * 1024, 1024}}}, at::kCPU);
    step_all(stored.store, other, 2, 0);
    step_all(stored.store, buffer, 9, 3);
    EXPECT_LE(stored.store.buffer_bytes(), (32 + 16 + 2 + 1) * kBlock)
        << "a larger one came; memory that is there grows when it must";
    std::vector<Parts> held;
    for (int b = 0; b < 9; ++b) {
      stored.store.use(buffer, b, false, [&](const Parts& parts) { held.push_back(parts); });
    }
    held.clear();
    step_all(stored.store, buffer, 9, 4);
    EXPECT_LE(stored.store.buffer_bytes(), (32 + 16 + 2 + 1) * kBlock);
  }
}

/// Passes over the buckets of a store, with as many named ahead as it has memory for. Expects that from the second on
/// none is read only when it is used.
void expect_all_read_ahead(const std::vector<int64_t>& numel, int64_t buffers, bool modifies) {
  Stored stored({.kind = "optimizer states", .buffers = buffers, .pipeline_write = true, .fast_init = true});
  const int64_t buffer = stored.store.add({{at::kFloat, 0, numel}}, at::kCPU);
  const auto buckets = static_cast<int>(numel.size());
  step_all(stored.store, buffer, buckets, 0);
  for (int pass = 0; pass < 3; ++pass) {
    for (int b = 0; b < buckets; ++b) {
      const int64_t before = stored.traffic->read;
      stored.store.acquire(buffer, b);
      EXPECT_TRUE(pass == 0 || stored.traffic->read == before)
          << buffers << " buffers, numel " << testing::PrintToString(numel) << ": bucket " << b
          << " is read when it is used";
      for (int64_t k = 1; k <= stored.store.ahead(); ++k) {
        stored.store.prefetch(buffer, (b + k) % buckets);
      }
      stored.store.release(buffer, b, modifies);
    }
  }
}

// Wherever one large bucket lies, or two, they are there when they are used: smaller ones leave their memory alone.
// Only if each bucket is written, 3 buffers are too few for that.
TEST(DiskStoreTest, TheLargestBucketsAreReadAhead) {
  for (const auto& [buffers, modifies] :
       {std::pair(3, false), std::pair(4, false), std::pair(4, true), std::pair(5, false), std::pair(5, true)}) {
    for (const int buckets : {9, 12}) {
      for (int large = 0; large < buckets; ++large) {
        for (int other = large; other < buckets; ++other) {
          std::vector<int64_t> numel(static_cast<size_t>(buckets), 1024);
          numel[static_cast<size_t>(large)] = numel[static_cast<size_t>(other)] = 16 * 1024;
          expect_all_read_ahead(numel, buffers, modifies);
        }
      }
    }
  }
}

TEST(DiskStoreTest, TheFirstBucketsStayInMemoryAsFarAsTheyMay) {
  Stored stored({.kind = "parameters", .buffers = 3, .fast_init = true, .elements_in_memory = 2500});
  const int64_t buffer = stored.store.add(equal_arrays(1, 10, 1000), at::kCPU);
  for (int step = 0; step < 3; ++step) {
    step_all(stored.store, buffer, 10, step);
  }
  EXPECT_EQ(stored.traffic->written, 3 * 8 * kBlock) << "2 of 10 buckets have room";
}

// For checkpoints that share its blocks.
TEST(DiskStoreTest, SaysWhereInItsFileAnArrayIs) {
  Stored stored({.kind = "optimizer states", .buffers = 3, .fast_init = true, .elements_in_memory = 2000});
  const int64_t buffer = stored.store.add(equal_arrays(2, 5, 1000), at::kCPU);
  EXPECT_FALSE(stored.store.extent(buffer, 2, 0)) << "never written";
  for (int b = 0; b < 5; ++b) {
    stored.store.use(buffer, b, true, [&](const Parts& parts) {
      EXPECT_FALSE(stored.store.extent(buffer, b, 1)) << "in use";
      at::Tensor(parts[0]).fill_(b);
      at::Tensor(parts[1]).copy_(at::arange(1000) + b);
    });
  }
  EXPECT_FALSE(stored.store.extent(buffer, 0, 1)) << "in memory";
  for (int b = 1; b < 5; ++b) {
    const auto extent = stored.store.extent(buffer, b, 1);
    ASSERT_TRUE(extent);
    EXPECT_EQ(extent->offset % kBlock, 0);
    EXPECT_EQ(extent->bytes, 4000);
    const at::Tensor found = at::empty({1000});
    std::ifstream(extent->file, std::ios::binary)
        .seekg(extent->offset)
        .read(static_cast<char*>(found.mutable_data_ptr()), extent->bytes);
    EXPECT_TRUE(found.equal((at::arange(1000) + b).to(at::kFloat))) << b;
  }
}

TEST(DiskStoreTest, TensorsOutliveTheStore) {
  at::Tensor kept;
  {
    Stored stored;
    const int64_t buffer = stored.store.add(equal_arrays(1, 2, 1000), at::kCPU);
    write(stored.store, buffer, 1, 7);
    stored.store.use(buffer, 1, false, [&](const Parts& parts) { kept = parts.front().slice(0, 10, 20); });
  }
  EXPECT_TRUE(kept.eq(7).all().item<bool>());
}

TEST(DiskStoreTest, NoFileHasANameAndTheFolderEndsWithTheStore) {
  const ScratchFolder scratch(make_scratch_folder("trireme_offload"));
  {
    DiskStore store(RankFolder::open(scratch.path, 3), {.kind = "optimizer states"}, std::make_shared<Traffic>());
    store.add(equal_arrays(1, 4, 1000), at::kCPU);
    EXPECT_TRUE(fs::is_directory(scratch.path / "trireme.rank3"));
    EXPECT_TRUE(fs::is_empty(scratch.path / "trireme.rank3"));
  }
  EXPECT_TRUE(fs::is_empty(scratch.path));
}

// For hang reports, which another thread makes.
TEST(DiskStoreTest, WhileItWaitsANoteSaysForWhat) {
  Stored stored({.kind = "optimizer states", .buffers = 3, .pipeline_read = false, .pipeline_write = false});
  const int64_t buffer = stored.store.add(equal_arrays(1, 5, 1 << 18), at::kCPU);
  std::set<std::string> seen;
  std::atomic<bool> enough = false;
  std::thread watcher([&] {
    while (seen.size() < 2) {
      for (const ThreadNotes& thread : current_notes()) {
        for (const NoteView& note : thread.notes) {
          if (const std::string text = describe(note); text.ends_with("from disk of bucket 4 (optimizer states)") ||
                                                       text.ends_with("to disk of bucket 4 (optimizer states)")) {
            seen.insert(text);
          }
        }
      }
    }
    enough = true;
  });
  for (int b = 0; !enough; b = (b + 1) % 5) {
    write(stored.store, buffer, b, b);
  }
  watcher.join();
  EXPECT_THAT(seen, testing::ElementsAre("read from disk of bucket 4 (optimizer states)",
                                         "write to disk of bucket 4 (optimizer states)"));
}

TEST(DiskStoreTest, WaitsAreSpansOfTheTrace) {
  monitor::tracer().start(0);
  Stored stored(
      {.kind = "optimizer states", .buffers = 3, .pipeline_read = false, .pipeline_write = false, .fast_init = true});
  const int64_t buffer = stored.store.add(equal_arrays(1, 4, 1024), at::kCPU);
  for (int step = 0; step < 2; ++step) {
    step_all(stored.store, buffer, 4, step);
  }
  monitor::tracer().write(stored.scratch.path / "trace.json");
  const std::string trace = read_file(stored.scratch.path / "trace.json");
  const auto count = [&](const char* text) {
    int found = 0;
    for (size_t at = trace.find(text); at != std::string::npos; at = trace.find(text, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(count("wait for a read from disk"), 4) << "of the second step";
  EXPECT_EQ(count("wait for a write to disk"), 8);
}

TEST(DiskStoreTest, RefusesWhatCannotBe) {
  try {
    Stored stored({.kind = "optimizer states", .buffers = 2});
    ADD_FAILURE() << "two buffers";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("buffer_count of the optimizer states is 2"));
  }
  Stored stored;
  const int64_t buffer = stored.store.add(equal_arrays(1, 4, 1000), at::kCPU);
  EXPECT_THROW(stored.store.release(buffer, 0, false), Error);
}

} // namespace
} // namespace trireme::offload
