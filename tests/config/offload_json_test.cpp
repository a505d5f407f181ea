// What the reader makes of the offload sections and of "aio".
#include <trireme/base/error.h>
#include <trireme/config/deepspeed_json.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace trireme::config {
namespace {

using offload::Place;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

EngineConfig read_offloaded(const std::string& text) {
  return read_deepspeed(JsonNode::parse(text, "ds.json"));
}

std::string refusal_of(const std::string& text) {
  try {
    read_offloaded(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// "zero_optimization" with stage 3 and this inside.
std::string at_stage(const std::string& inside, int stage = 3) {
  return concat(R"({"zero_optimization": {"stage": )", stage, ", ", inside, "}}");
}

// The sections as DeepSpeed's and the Trainer's pages show them for ZeRO-Infinity.
constexpr const char* kInfinity = R"({
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 6, "fast_init": true, "ratio": 0.3,
                          "pipeline_read": true, "pipeline_write": true},
    "offload_param": {"device": "nvme", "nvme_path": "/other_nvme", "pin_memory": false, "buffer_count": 7, "buffer_size": 2e8, "max_in_cpu": 3e9},
    "sub_group_size": 1e9
  },
  "aio": {"block_size": 262144, "queue_depth": 32, "intra_op_parallelism": 2, "thread_count": 1, "single_submit": true, "overlap_events": false}
})";

TEST(OffloadJsonTest, EveryKeyOfThePagesIsRead) {
  const EngineConfig config = read_offloaded(kInfinity);
  const offload::OptimizerOptions& optimizer = config.offload.optimizer;
  EXPECT_EQ(std::tuple(optimizer.place, optimizer.nvme_path, optimizer.buffer_count, optimizer.ratio),
            std::tuple(Place::nvme, "/local_nvme", 6, 0.3));
  EXPECT_TRUE(optimizer.pin_memory && optimizer.fast_init && optimizer.pipeline_read && optimizer.pipeline_write &&
              !optimizer.delayed_update);
  const offload::ParameterOptions& parameters = config.offload.parameters;
  EXPECT_EQ(std::tuple(parameters.place, parameters.nvme_path, parameters.buffer_count, parameters.max_in_cpu,
                       parameters.pin_memory),
            std::tuple(Place::nvme, "/other_nvme", 7, 3'000'000'000, false));
  const aio::Options& aio = config.offload.aio;
  EXPECT_EQ(std::tuple(aio.block_size, aio.queue_depth, aio.threads, aio.single_submit, aio.overlap_events),
            std::tuple(262144, 32, 2, true, false));
  EXPECT_THAT(
      config.notes,
      ElementsAre(HasSubstr("offload_param.buffer_size has no effect: buffers are as large as the largest buckets")));
}

TEST(OffloadJsonTest, DefaultsAreDeepSpeeds) {
  const offload::Options options =
      read_offloaded(at_stage(R"("offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"})")).offload;
  EXPECT_EQ(std::tuple(options.optimizer.place, options.optimizer.nvme_path, options.optimizer.buffer_count,
                       options.optimizer.ratio),
            std::tuple(Place::host, "", 4, 1.0));
  EXPECT_TRUE(options.optimizer.pin_memory);
  EXPECT_FALSE(options.optimizer.pipeline_read || options.optimizer.pipeline_write || options.optimizer.fast_init ||
               options.optimizer.delayed_update);
  EXPECT_EQ(std::tuple(options.parameters.place, options.parameters.buffer_count, options.parameters.max_in_cpu),
            std::tuple(Place::host, 5, 1'000'000'000));
  EXPECT_TRUE(options.parameters.pin_memory);
  const aio::Options aio = options.aio;
  EXPECT_EQ(std::tuple(aio.block_size, aio.queue_depth, aio.threads, aio.single_submit, aio.overlap_events),
            std::tuple(1 << 20, 8, 1, false, true));
}

TEST(OffloadJsonTest, WhatIsOffMovesNothing) {
  for (const char* inside :
       {R"("offload_optimizer": {"device": "none", "nvme_path": "/n", "ratio": 0.5, "delayed_update": true})",
        R"("offload_optimizer": {"device": "auto"})", R"("offload_optimizer": {"pin_memory": true})",
        R"("offload_param": {"device": "auto", "nvme_path": "auto"})", R"("offload_param": null)"}) {
    const EngineConfig config = read_offloaded(at_stage(inside, 1));
    EXPECT_EQ(config.offload.optimizer.place, Place::device) << inside;
    EXPECT_EQ(config.offload.parameters.place, Place::device) << inside;
    EXPECT_EQ(to_json(config), to_json(read_offloaded(at_stage(R"("reduce_scatter": true)", 1)))) << inside;
  }
}

TEST(OffloadJsonTest, WhatFilesNeedIsNotedWithoutFiles) {
  EXPECT_THAT(
      read_offloaded(at_stage(R"("offload_optimizer": {"device": "cpu", "nvme_path": "/n", "pipeline_read": true})"))
          .notes,
      ElementsAre(
          AllOf(HasSubstr("ds.json:1:57: zero_optimization.offload_optimizer: nvme_path, pipeline_read have no effect"),
                HasSubstr("\"cpu\", not \"nvme\""))));
  EXPECT_THAT(read_offloaded(at_stage(R"("offload_param": {"device": "cpu", "max_in_cpu": 1e9})")).notes,
              ElementsAre(HasSubstr("max_in_cpu has no effect")));
  EXPECT_THAT(read_offloaded(R"({"aio": {"queue_depth": 32}})").notes,
              ElementsAre(HasSubstr("ds.json:1:9: aio has no effect: nothing is kept in files")));
  EXPECT_THAT(read_offloaded(
                  R"({"aio": {"queue_depth": 32}, "activation_checkpointing": {"policy": "nvme", "nvme_path": "/n"}})")
                  .notes,
              testing::IsEmpty())
      << "activations are in files";
  EXPECT_THAT(read_offloaded(
                  R"({"aio": {"queue_depth": 32}, "activation_checkpointing": {"policy": "keep", "nvme_path": "/n"}})")
                  .notes,
              ElementsAre(HasSubstr("aio has no effect")));
  EXPECT_THAT(read_offloaded(R"({"aio": {"queue_depth": 8}})").notes, IsEmpty());
}

TEST(OffloadJsonTest, WhatCannotBeIsOneSentence) {
  struct Bad {
    std::string text;
    const char* place;
    const char* what;
    const char* next;
  };
  const std::string nvme = R"("device": "nvme", "nvme_path": "/n", )";
  for (const Bad& bad : std::vector<Bad>{
           {at_stage(R"("offload_optimizer": {"device": "nvme"})", 1),
            "zero_optimization.offload_optimizer.device: files need a folder", "no \"nvme_path\"", "\"nvme_path\": "},
           {at_stage(R"("offload_param": {"device": "nvme", "nvme_path": ""})"),
            "zero_optimization.offload_param.device: files need a folder", "", "\"nvme_path\": "},
           {at_stage(R"("offload_param": {"device": "nvme", "nvme_path": "auto"})"),
            "offload_param.nvme_path: \"auto\" is a placeholder", "which disk", "Write the folder."},
           {at_stage(R"("offload_param": {"device": "cpu"})", 2),
            "zero_optimization.offload_param: offload_param with ZeRO stage 2", "uses whole parameters",
            "Use \"stage\": 3"},
           {at_stage(concat(R"("offload_optimizer": {)", nvme, R"("buffer_count": 2})")),
            "zero_optimization.offload_optimizer.buffer_count: one bucket is read", "at least 3 buffers, found 2",
            "Write 4"},
           {at_stage(concat(R"("offload_param": {)", nvme, R"("buffer_count": 1})")),
            "zero_optimization.offload_param.buffer_count: one bucket is read", "found 1", "Write 5"},
           {at_stage(concat(R"("offload_optimizer": {)", nvme, R"("ratio": 1.5})")),
            "zero_optimization.offload_optimizer.ratio: ", "must be a number from 0 to 1, found 1.5", ""},
           {at_stage(concat(R"("offload_optimizer": {)", nvme, R"("buffer_size": 1e8})")),
            "zero_optimization.offload_optimizer.buffer_size: not supported: ", "offload_param", "\"buffer_count\""},
           {at_stage(R"("offload_optimizer": {"device": "disk"})"),
            "zero_optimization.offload_optimizer.device: \"disk\" is not one of the choices", "",
            "Known: none, cpu, nvme"},
           {at_stage(R"("offload_optimizer": {"device": "cpu", "nvme_pth": "/n"})"),
            "zero_optimization.offload_optimizer.nvme_pth: unknown key", "", "nvme_path"},
           {at_stage(R"("offload_optimizer": {"device": "cpu", "super_offload": true})"),
            "offload_optimizer.super_offload: not supported: ", "Grace Hopper", ""},
           {at_stage(R"("offload_optimizer": true)"), "zero_optimization.offload_optimizer: must be an object", "", ""},
           {at_stage(R"("cpu_offload": true)", 2), "zero_optimization.cpu_offload: not supported: ", "",
            R"("offload_optimizer": {"device": "cpu"})"},
           {at_stage(R"("cpu_offload_params": true)"), "zero_optimization.cpu_offload_params: not supported: ", "",
            R"("offload_param": {"device": "cpu"})"},
           {at_stage(R"("cpu_offload_use_pin_memory": true)"),
            "zero_optimization.cpu_offload_use_pin_memory: not supported: ", "", "\"pin_memory\""},
           {R"({"aio": {"block_size": 5000}})", "aio.block_size: direct transfers are multiples of 4096 bytes",
            "found 5000", "Write 4096."},
           {R"({"aio": {"queue_depth": 0}})", "aio.queue_depth: must be a whole number from 1 to 4096", "", ""},
           {R"({"aio": {"block_size": 1099511627776}})", "aio.block_size: must be at most 1073741824", "", ""},
           {R"({"aio": {"thread_count": 4}})", "aio.thread_count: not supported: ", "", "\"intra_op_parallelism\""},
           {R"({"aio": {"use_gds": true}})", "aio.use_gds: not supported: ", "", "Leave it out"},
       }) {
    SCOPED_TRACE(bad.text);
    EXPECT_THAT(refusal_of(bad.text), AllOf(HasSubstr("[config] ds.json:1:"), HasSubstr(bad.place), HasSubstr(bad.what),
                                            HasSubstr(bad.next)));
  }
}

TEST(OffloadJsonTest, BuffersAreCountedForFilesOnly) {
  EXPECT_EQ(read_offloaded(at_stage(R"("offload_optimizer": {"device": "cpu", "buffer_count": 1})"))
                .offload.optimizer.buffer_count,
            1);
}

TEST(OffloadJsonTest, WhatWasUnderstoodReadsBackTheSame) {
  for (const std::string& text : {std::string("{}"), std::string(kInfinity),
                                  at_stage(R"("offload_optimizer": {"device": "cpu", "delayed_update": true})", 2)}) {
    const auto once = to_json(read_offloaded(text));
    EXPECT_EQ(to_json(read_offloaded(once.dump())), once);
  }
}

} // namespace
} // namespace trireme::config
