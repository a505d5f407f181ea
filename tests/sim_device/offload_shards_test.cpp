// Shards of parameters on the host of a device, or in its files: on their way to the device they stay as they are.
#include "offload_case.h"

#include <trireme/memory/offload/disk_store.h>
#include <trireme/memory/offload/host_store.h>
#include <trireme/shards/zero/gather_bucket.h>

#include <gmock/gmock.h>

#include <map>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::on_ranks;
using testing::IsEmpty;

at::Tensor on_device(int64_t numel, at::ScalarType type) {
  return torch::empty({numel}, at::TensorOptions(type).device(sim::device()));
}

/// Units of 64 numbers, whose shards are in `store`; those of unit i are i.
struct Units {
  static constexpr int64_t kNumel = 64;
  Units(int64_t count, std::shared_ptr<bucket::StateStore> store) {
    for (int64_t i = 0; i < count; ++i) {
      weights.emplace_back(concat("weight", i), torch::full({kNumel}, static_cast<double>(i),
                                                            at::TensorOptions(at::kFloat).device(sim::device())));
      unit_of[weights.back().second.unsafeGetTensorImpl()] = i;
    }
    bucket::FlatOptions sharding;
    sharding.shard_parameters = true;
    sharding.unit_of = [this](const at::Tensor& weight) { return unit_of.at(weight.unsafeGetTensorImpl()); };
    sharding.parameter_store = std::move(store);
    flat = std::make_unique<bucket::FlatParameters>(weights, bucket::LayoutOptions(), on_device, sharding);
    for (int64_t b = 0; b < count; ++b) {
      flat->move_in(b);
      flat->update_shard(b);
      flat->release(b);
      EXPECT_TRUE(flat->keeps_on_host(b));
    }
  }
  int64_t count() const { return std::ssize(weights); }
  /// Adds to all shards on the device.
  void add(double number) {
    for (int64_t b = 0; b < count(); ++b) {
      flat->with_owned_on_device(b, flat->plan().mine(b), /*modifies=*/true, [&](const at::Tensor& shard) {
        EXPECT_TRUE(shard.device() == sim::device());
        flat->prefetch_data((b + 1) % count());
        at::Tensor(shard).add_(number);
      });
    }
  }
  /// What was added in all.
  void expect_gathered(double number) {
    for (int64_t b = 0; b < count(); ++b) {
      zero::gather_bucket(comm::Group(), *flat, b).wait();
      expect(b, number);
      flat->release(b);
    }
  }
  void expect(int64_t b, double number) {
    const at::Tensor& weight =
        weights[static_cast<size_t>(flat->layout().slots()[flat->layout().buckets()[b].first_slot].tensor)].second;
    EXPECT_TRUE(weight.eq(static_cast<double>(unit_of.at(weight.unsafeGetTensorImpl())) + number).all().item<bool>())
        << b;
  }

  bucket::NamedTensors weights;
  std::map<const void*, int64_t> unit_of;
  std::unique_ptr<bucket::FlatParameters> flat;
};

// Of five units three have memory on the host: the next one is read into it when the device has read what is there.
TEST(SimDeviceShards, MemoryOfFilesIsUsedAgainWhenItHasBeenRead) {
  const fs::path files = scratch("shards_in_files");
  on_ranks(1, [&](comm::World&) {
    start_single_threaded();
    sim::set_polls(1 << 30); // the device is never done by being asked
    constexpr int64_t kUnits = 5;
    const auto traffic = std::make_shared<offload::Traffic>();
    Units units(
        kUnits,
        std::make_shared<offload::DiskStore>(
            offload::RankFolder::open(files, 0),
            offload::DiskOptions{.kind = "parameters", .buffers = 3, .fast_init = true, .pin_memory = true}, traffic));
    for (int round = 0; round < 3; ++round) {
      const int64_t read = traffic->read;
      sim::reset_host_synchronisations();
      std::vector<comm::Work> gathered;
      for (int64_t b = 0; b < kUnits; ++b) {
        gathered.push_back(zero::gather_bucket(comm::Group(), *units.flat, b));
        if (b + 1 < kUnits) {
          units.flat->prefetch_data(b + 1);
        }
      }
      EXPECT_EQ(sim::host_synchronisations(), kUnits - 3) << "for memory, not for copies";
      EXPECT_EQ(traffic->read - read, kUnits * aio::kAlignment);
      for (int64_t b = 0; b < kUnits; ++b) {
        gathered[b].wait();
        units.expect(b, 0);
        units.flat->release(b);
      }
    }
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
  fs::remove_all(files);
}

// A shard on the host that is on its way to the device changes when it has been read.
TEST(SimDeviceShards, AreSteppedAfterTheyHaveBeenRead) {
  on_ranks(1, [&](comm::World&) {
    start_single_threaded();
    at::Tensor weight = torch::arange(64, at::TensorOptions(at::kFloat).device(sim::device()));
    bucket::FlatOptions sharding;
    sharding.shard_parameters = true;
    sharding.unit_of = [](const at::Tensor&) { return 0; };
    sharding.parameter_store = offload::make_host_store(true);
    bucket::FlatParameters flat({{"weight", weight}}, {}, on_device, sharding);
    flat.move_in(0);
    flat.update_shard(0);
    flat.release(0);
    EXPECT_TRUE(flat.keeps_on_host(0));
    sim::reset_host_synchronisations();
    comm::Work gathered = zero::gather_bucket(comm::Group(), flat, 0);
    EXPECT_EQ(sim::host_synchronisations(), 0);
    flat.modify_owned_data(0, flat.plan().mine(0), [](const at::Tensor& shard) { at::Tensor(shard).fill_(5); });
    gathered.wait();
    EXPECT_EQ(weight.sum().item<float>(), 63 * 32);
    flat.release(0);
    zero::gather_bucket(comm::Group(), flat, 0).wait();
    EXPECT_EQ(weight.sum().item<float>(), 64 * 5);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

// A bucket comes while one is stepped and one returns, which takes the device the memory of three, and the host
// nothing.
TEST(SimDeviceShards, AreSteppedOnTheDeviceWithoutTheHost) {
  on_ranks(1, [&](comm::World&) {
    start_single_threaded();
    sim::set_polls(1 << 30);
    constexpr int64_t kUnits = 9;
    Units units(kUnits, offload::make_host_store(true));
    units.add(1);
    units.expect_gathered(1);
    const int64_t before = sim::memory().bytes;
    sim::reset_host_synchronisations();
    sim::keep_spans(true);
    units.add(1);
    const std::vector<sim::Span> spans = sim::spans();
    sim::keep_spans(false);
    EXPECT_EQ(sim::memory().bytes - before, 3 * 512) << "the device's memory comes in pieces of 512 bytes";
    ASSERT_EQ(std::ssize(spans), 3 * kUnits);
    EXPECT_EQ(spans.back().end - spans.front().begin, kUnits + 2) << "all three at a time";
    at::Tensor whole = on_device(Units::kNumel, at::kFloat); // read before the host has read
    units.flat->copy_to_device(kUnits - 1, whole);
    EXPECT_EQ(sim::host_synchronisations(), 0) << testing::PrintToString(sim::host_synchronisation_names());
    EXPECT_EQ(sim::memory().bytes - before, 512) << "theirs is given back";
    EXPECT_TRUE(units.flat->owned_data(kUnits - 1, units.flat->plan().mine(kUnits - 1)).equal(whole.cpu()))
        << "the host reads what is there";
    units.expect_gathered(2);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

// With memory for three of five: what returns is there before it is written, and before its memory is another's.
TEST(SimDeviceShards, InFilesAreSteppedOnTheDevice) {
  const fs::path files = scratch("stepped_in_files");
  on_ranks(1, [&](comm::World&) {
    start_single_threaded();
    sim::set_polls(1 << 30);
    constexpr int64_t kUnits = 5;
    for (const int64_t buffers : {3, 4, 5, 8}) {
      const auto traffic = std::make_shared<offload::Traffic>();
      const auto store = std::make_shared<offload::DiskStore>(
          offload::RankFolder::open(files, 0),
          offload::DiskOptions{.kind = "parameters", .buffers = buffers, .fast_init = true, .pin_memory = true},
          traffic);
      Units units(kUnits, store);
      for (int round = 1; round <= 3; ++round) {
        const int64_t written = traffic->written;
        units.add(1);
        units.expect_gathered(round);
        EXPECT_EQ(traffic->written - written, kUnits * aio::kAlignment);
        EXPECT_LE(store->buffer_bytes(), buffers * aio::kAlignment) << "as many as were said";
      }
      EXPECT_THAT(sim::problems(), IsEmpty());
    }
  });
  fs::remove_all(files);
}

// It has one bucket at a time, and knows nothing of devices that write.
TEST(SimDeviceShards, OfAStoreOfYoursAreSteppedOneByOne) {
  const fs::path files = scratch("stepped_in_a_store");
  on_ranks(1, [&](comm::World&) {
    start_single_threaded();
    Units units(4, std::make_shared<FilesOfTheHost>(files));
    for (int round = 1; round <= 2; ++round) {
      units.add(1);
      units.expect_gathered(round);
    }
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
  fs::remove_all(files);
}

// What fails leaves the shard as it was, and others can be stepped.
TEST(SimDeviceShards, StayAsTheyAreWhereAStepFails) {
  on_ranks(1, [&](comm::World&) {
    start_single_threaded();
    Units units(4, offload::make_host_store(true));
    const auto fails = [](const at::Tensor& shard) {
      at::Tensor(shard).add_(1);
      throw std::runtime_error("a step");
    };
    EXPECT_THROW(units.flat->with_owned_on_device(2, units.flat->plan().mine(2), true, fails), std::runtime_error);
    units.expect_gathered(0);
    units.add(3);
    units.expect_gathered(3);
    EXPECT_THAT(sim::problems(), IsEmpty());
  });
}

} // namespace
} // namespace trireme::engine
