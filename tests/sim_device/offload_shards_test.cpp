// Shards of parameters on the host of a device, or in its files: on their way to the device they stay as they are.
#include "offload_case.h"

#include <trireme/offload/disk_store.h>
#include <trireme/offload/host_store.h>
#include <trireme/zero/gather_bucket.h>

#include <gmock/gmock.h>

#include <map>

namespace trireme::engine {
namespace {

namespace fs = std::filesystem;
using test::run_ranks;
using testing::IsEmpty;

at::Tensor on_device(int64_t numel, at::ScalarType type) {
  return torch::empty({numel}, at::TensorOptions(type).device(sim::device()));
}

// Of five units three have memory on the host: the next one is read into it when the device has read what is there.
TEST(SimDeviceShards, MemoryOfFilesIsUsedAgainWhenItHasBeenRead) {
  const fs::path files = scratch("shards_in_files");
  EXPECT_THAT(run_ranks(1,
                        [&](comm::World&) {
                          start_single_threaded();
                          sim::set_polls(1 << 30); // the device is never done by being asked
                          constexpr int64_t kUnits = 5;
                          bucket::NamedTensors weights;
                          std::map<const void*, int64_t> unit_of;
                          for (int64_t i = 0; i < kUnits; ++i) {
                            weights.emplace_back(concat("weight", i), torch::full({64}, static_cast<double>(i), at::TensorOptions(at::kFloat).device(sim::device())));
                            unit_of[weights.back().second.unsafeGetTensorImpl()] = i;
                          }
                          const auto traffic = std::make_shared<offload::Traffic>();
                          bucket::FlatOptions sharding;
                          sharding.shard_parameters = true;
                          sharding.unit_of = [&](const at::Tensor& weight) { return unit_of.at(weight.unsafeGetTensorImpl()); };
                          sharding.parameter_store = std::make_shared<offload::DiskStore>(
                              offload::RankFolder::open(files, 0), offload::DiskOptions{.kind = "parameters", .buffers = 3, .fast_init = true, .pin_memory = true}, traffic);
                          bucket::FlatParameters flat(weights, {}, on_device, sharding);
                          ASSERT_EQ(std::ssize(flat.layout().buckets()), kUnits);
                          for (int64_t b = 0; b < kUnits; ++b) {
                            flat.move_in(b);
                            flat.update_shard(b);
                            flat.release(b);
                          }
                          for (int round = 0; round < 3; ++round) {
                            const int64_t read = traffic->read;
                            sim::reset_host_synchronisations();
                            std::vector<comm::Work> gathered;
                            for (int64_t b = 0; b < kUnits; ++b) {
                              EXPECT_TRUE(flat.keeps_on_host(b));
                              gathered.push_back(zero::gather_bucket(comm::Group(), flat, b));
                              if (b + 1 < kUnits) {
                                flat.prefetch_data(b + 1);
                              }
                            }
                            EXPECT_EQ(sim::host_synchronisations(), kUnits - 3) << "for memory, not for copies";
                            EXPECT_EQ(traffic->read - read, kUnits * aio::kAlignment);
                            for (int64_t b = 0; b < kUnits; ++b) {
                              gathered[b].wait();
                              const at::Tensor& weight = weights[static_cast<size_t>(flat.layout().slots()[flat.layout().buckets()[b].first_slot].tensor)].second;
                              EXPECT_TRUE(weight.eq(static_cast<double>(unit_of.at(weight.unsafeGetTensorImpl()))).all().item<bool>()) << b;
                              flat.release(b);
                            }
                          }
                          EXPECT_THAT(sim::problems(), IsEmpty());
                        }),
              IsEmpty());
  fs::remove_all(files);
}

// A shard on the host that is on its way to the device changes when it has been read.
TEST(SimDeviceShards, AreSteppedAfterTheyHaveBeenRead) {
  EXPECT_THAT(run_ranks(1,
                        [&](comm::World&) {
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
                        }),
              IsEmpty());
}

} // namespace
} // namespace trireme::engine
