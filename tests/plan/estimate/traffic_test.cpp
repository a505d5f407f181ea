// Formulas against counted bytes: equal, not near.
#include <trireme/engine/initialize.h>
#include <trireme/models/gpt.h>
#include <trireme/models/gpt_layers.h>
#include <trireme/parallel/pipeline/frozen.h>
#include <trireme/plan/estimate/traffic.h>
#include <trireme/plan/run_estimate.h>

#include <tests/support/run_ranks.h>

#include <gmock/gmock.h>
#include <torch/utils.h>

#include <map>
#include <utility>

namespace trireme::estimate {
namespace {

using test::run_ranks;
using testing::IsEmpty;

class Tokens : public data::Dataset {
 public:
  explicit Tokens(const models::GptOptions& options) : options_(options) {}
  int64_t size() const override { return 96; }
  data::Batch get(std::span<const int64_t> indices) const override {
    const at::Tensor tokens = torch::arange(options_.sequence_length * std::ssize(indices))
                                  .remainder(options_.vocab_size)
                                  .view({std::ssize(indices), -1});
    return {{tokens}, {tokens}, std::ssize(indices)};
  }
  std::string describe() const override { return "tokens"; }

 private:
  models::GptOptions options_;
};

config::RunConfig run_config(const std::vector<std::string>& overrides) {
  const std::string text =
      R"({"model": {"type": "gpt", "layers": 4, "hidden": 48, "heads": 2, "sequence_length": 20, "vocab_size": 77},
    "data": {"type": "tokens", "train": ["t.bin"]}, "training": {"steps": 3},
    "engine": {"train_batch_size": 24, "zero_optimization": {"reduce_bucket_size": 30000}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}})";
  return config::read_run(JsonNode::parse(text, "run.json"), "/", overrides);
}

struct TrafficCase {
  int ranks;
  std::vector<std::string> overrides;
};

std::vector<TrafficCase> cases() {
  std::vector<TrafficCase> all;
  for (const int ranks : {2, 3, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      const std::string zero = concat("engine.zero_optimization.stage=", stage);
      all.push_back({ranks, {zero}});
      all.push_back({ranks, {zero, "engine.gradient_accumulation_steps=2", "engine.gradient_clipping=0"}});
    }
  }
  const std::string low = "engine.zero_optimization.stage3_param_persistence_threshold=100";
  const std::string three = "engine.zero_optimization.stage=3";
  all.push_back({2, {three, low}});
  all.push_back(
      {4,
       {three, low, "engine.zero_optimization.stage3_prefetch_bucket_size=0", "engine.gradient_accumulation_steps=2"}});
  all.push_back(
      {3, {three, low, "engine.zero_optimization.stage3_prefetch_bucket_size=60000", "model.tie_embeddings=false"}});
  // More micro-batches than are counted one by one.
  all.push_back({2, {three, low, "engine.gradient_accumulation_steps=6"}});
  all.push_back({2,
                 {three, low, "engine.gradient_accumulation_steps=12",
                  "engine.zero_optimization.stage3_prefetch_bucket_size=0"}});
  all.push_back({2,
                 {three, low, "engine.gradient_accumulation_steps=12",
                  "engine.zero_optimization.stage3_prefetch_bucket_size=60000"}});
  all.push_back({3,
                 {three, low, "engine.gradient_accumulation_steps=8",
                  "engine.zero_optimization.stage3_prefetch_bucket_size=1000000000"}});
  all.push_back({3,
                 {three, low, "engine.gradient_accumulation_steps=8",
                  "engine.zero_optimization.stage3_max_live_parameters=70000"}});
  all.push_back({2,
                 {three, low, "engine.gradient_accumulation_steps=12",
                  "engine.zero_optimization.stage3_max_live_parameters=1000000000"}});
  all.push_back({2, {"engine.zero_optimization.stage=1", "engine.bf16.enabled=true"}});
  all.push_back({2, {"engine.bf16.enabled=true", "engine.gradient_accumulation_steps=2"}});
  all.push_back({2, {"engine.bf16.enabled=true", "engine.communication_data_type=fp32"}});
  all.push_back({2, {"engine.zero_optimization.stage=1", "engine.optimizer.type=Lamb"}});
  for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zero-bubble"}) {
    all.push_back(
        {2, {"parallel.pipe=2", concat("parallel.schedule=", schedule), "engine.gradient_accumulation_steps=4"}});
  }
  all.push_back({4, {"parallel.pipe=2", "engine.gradient_accumulation_steps=4", "engine.zero_optimization.stage=1"}});
  all.push_back({4, {"parallel.pipe=2", "engine.gradient_accumulation_steps=4", "engine.zero_optimization.stage=2"}});
  all.push_back({4,
                 {"parallel.pipe=2", "engine.gradient_accumulation_steps=4", "engine.zero_optimization.stage=2",
                  "model.tie_embeddings=false"}});
  for (const char* schedule : {"naive", "1f1b", "gpipe", "interleaved", "zero-bubble"}) {
    all.push_back({4,
                   {"parallel.pipe=2", three, low, concat("parallel.schedule=", schedule),
                    "engine.gradient_accumulation_steps=4"}});
  }
  all.push_back({4,
                 {"parallel.pipe=2", three, low, "engine.gradient_accumulation_steps=4",
                  "engine.zero_optimization.stage3_max_live_parameters=0"}});
  all.push_back({4,
                 {"parallel.pipe=2", three, low, "engine.gradient_accumulation_steps=4",
                  "engine.zero_optimization.stage3_max_live_parameters=1000000000"}});
  all.push_back({4,
                 {"parallel.pipe=2", three, low, "engine.gradient_accumulation_steps=4",
                  "engine.zero_optimization.stage3_prefetch_bucket_size=0"}});
  all.push_back({4,
                 {"parallel.pipe=2", three, low, "engine.gradient_accumulation_steps=4", "engine.bf16.enabled=true",
                  "model.tie_embeddings=false"}});
  for (const char* schedule : {"1f1b", "zero-bubble"}) {
    all.push_back({4,
                   {"parallel.pipe=2", three, low, concat("parallel.schedule=", schedule),
                    "engine.gradient_accumulation_steps=4", "engine.pipeline.activation_checkpoint_interval=2"}});
  }
  for (const int stage : {1, 2, 3}) {
    const std::string zero = concat("engine.zero_optimization.stage=", stage);
    const std::string within = "engine.zero_optimization.mics_shard_size=2";
    all.push_back({4, {zero, within, low}});
    all.push_back({4, {zero, within, low, "engine.gradient_accumulation_steps=2", "engine.bf16.enabled=true"}});
  }
  all.push_back({2,
                 {three, low, "engine.gradient_accumulation_steps=4",
                  "engine.zero_optimization.stage3_max_live_parameters=60000"}});
  return all;
}

// The axes tensor and context: alone, with replicas and ZeRO, and with pipelines.
std::vector<TrafficCase> split_cases() {
  std::vector<TrafficCase> all;
  const auto add = [&](int ranks, std::vector<std::string> overrides, const std::vector<std::string>& more = {}) {
    overrides.insert(overrides.end(), more.begin(), more.end());
    overrides.insert(overrides.begin(), {"model.heads=4", "model.vocab_size=76"});
    all.push_back({ranks, std::move(overrides)});
  };
  const std::string low = "engine.zero_optimization.stage3_param_persistence_threshold=100";
  const std::string twice = "engine.gradient_accumulation_steps=2";
  const auto zero = [](int stage) { return concat("engine.zero_optimization.stage=", stage); };
  for (const char* sequence_parallel : {"false", "true"}) {
    const std::vector<std::string> tensor = {"parallel.tensor=2",
                                             concat("parallel.sequence_parallel=", sequence_parallel)};
    add(2, tensor);
    add(4, {"parallel.tensor=4", tensor[1]}, {twice});
    add(2, tensor, {"engine.bf16.enabled=true", twice});
    for (const int stage : {0, 1, 2, 3}) {
      add(4, tensor, {zero(stage), low, twice});
    }
    add(8, tensor, {zero(3), low, "engine.zero_optimization.mics_shard_size=2"});
    // Of the parameters below 100 the 24 whole ones, of 48 numbers, and two divided ones of 72 have room.
    add(4, tensor, {zero(3), low, "engine.zero_optimization.stage3_model_persistence_threshold=1302"});
    for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zero-bubble"}) {
      add(4, tensor,
          {"parallel.pipe=2", concat("parallel.schedule=", schedule), "engine.gradient_accumulation_steps=4"});
    }
    add(4, tensor,
        {"parallel.pipe=2", "engine.gradient_accumulation_steps=4",
         "engine.pipeline.activation_checkpoint_interval=1"});
    add(4, tensor,
        {"parallel.pipe=2", "parallel.schedule=zero-bubble", "engine.gradient_accumulation_steps=4",
         "engine.pipeline.activation_checkpoint_interval=1"});
    for (const int stage : {1, 3}) {
      add(8, tensor, {"parallel.pipe=2", zero(stage), low, "engine.gradient_accumulation_steps=4"});
    }
    add(8, tensor,
        {"parallel.pipe=2", zero(3), low, "parallel.schedule=zero-bubble", "engine.gradient_accumulation_steps=4"});
    // Vocabularies that the tensor ranks share unevenly.
    const std::string uneven = "model.vocab_size=77";
    add(4, {"parallel.tensor=4", tensor[1]}, {uneven});
    add(2, tensor, {uneven, "engine.bf16.enabled=true", "model.tie_embeddings=false"});
    for (const int stage : {0, 1, 2, 3}) {
      add(4, tensor, {uneven, zero(stage), low, twice});
    }
    add(4, tensor,
        {uneven, zero(3), low, "engine.gradient_accumulation_steps=6",
         "engine.zero_optimization.stage3_max_live_parameters=70000"});
    add(8, tensor,
        {uneven, "parallel.pipe=2", zero(3), low, "parallel.schedule=interleaved",
         "engine.gradient_accumulation_steps=4"});
    // By its own number of parameters the second tensor rank would cut the layers elsewhere.
    add(6, tensor,
        {"model.vocab_size=555", "model.layers=3", "parallel.pipe=3", "engine.gradient_accumulation_steps=4"});
  }
  for (const char* kind : {"ring", "ulysses"}) {
    const std::vector<std::string> context = {"parallel.context=2", concat("parallel.context_kind=", kind)};
    add(2, context);
    add(4, {"parallel.context=4", context[1], "model.sequence_length=16"}, {twice});
    add(2, context, {"engine.bf16.enabled=true"});
    for (const int stage : {1, 2, 3}) {
      add(4, context, {zero(stage), low, twice});
    }
    add(4, context, {"parallel.tensor=2"});
    add(4, context, {"parallel.tensor=2", "parallel.sequence_parallel=true", zero(1)});
    add(4, context, {"parallel.pipe=2", "engine.gradient_accumulation_steps=4"});
    add(4, context,
        {"parallel.pipe=2", zero(3), low, "engine.gradient_accumulation_steps=4", "parallel.schedule=zero-bubble"});
    add(4, context,
        {"parallel.pipe=2", "engine.gradient_accumulation_steps=4",
         "engine.pipeline.activation_checkpoint_interval=1"});
    add(8, context, {"parallel.tensor=2", "parallel.sequence_parallel=true", zero(2), twice});
    add(8, context,
        {"parallel.pipe=2", "parallel.tensor=2", "parallel.sequence_parallel=true",
         "engine.gradient_accumulation_steps=4", "parallel.schedule=interleaved"});
  }
  return all;
}

// Frozen parameters: some of each block, or all up to a block, which then have no backward.
std::vector<TrafficCase> frozen_cases() {
  std::vector<TrafficCase> all;
  const std::string low = "engine.zero_optimization.stage3_param_persistence_threshold=100";
  const std::string three = "engine.zero_optimization.stage=3";
  const std::string lower = R"(training.freeze=["wte", "wpe", "h\\.[01]\\."])";
  for (const std::string& freeze :
       {lower, std::string("training.freeze=attn|mlp.c_proj"), std::string("training.freeze=^(?!transformer.h.3)")}) {
    for (const int stage : {0, 1, 2, 3}) {
      all.push_back({2, {freeze, low, concat("engine.zero_optimization.stage=", stage)}});
    }
    all.push_back({2, {freeze, "parallel.pipe=2", "engine.gradient_accumulation_steps=4"}});
    all.push_back({4, {freeze, "parallel.pipe=2", three, low, "engine.gradient_accumulation_steps=4"}});
  }
  all.push_back({2,
                 {lower, three, low, "engine.pipeline.activation_checkpoint_interval=2",
                  "engine.gradient_accumulation_steps=2", "engine.bf16.enabled=true"}});
  all.push_back({4, {lower, three, low, "parallel.tensor=2"}});
  all.push_back({2, {lower, "parallel.tensor=2", "engine.pipeline.activation_checkpoint_interval=1"}});
  all.push_back({2, {lower, "parallel.context=2"}});
  return all;
}

// The run as this tensor rank sees it: of a vocabulary that is divided unevenly the first has most, which is what
// describe() says.
Run on_tensor_rank(const config::RunConfig& config, int ranks, int tensor_rank) {
  Run run = plan::describe(config, ranks).run;
  Conditions conditions;
  conditions.samples = run.micro_batch;
  conditions.type = run.precision.compute;
  conditions.layer_list = run.layer_list;
  conditions.tensor_ranks = run.tensor_ranks;
  conditions.tensor_rank = tensor_rank;
  conditions.context_ranks = run.context_ranks;
  conditions.context_kind = config.parallel.context_kind;
  conditions.sequence_parallel = run.sequence_parallel;
  const Model described = std::exchange(run.model, gpt(config.model.gpt, conditions));
  for (size_t i = 0; i < described.layers.size(); ++i) { // with what is frozen
    for (size_t p = 0; p < described.layers[i].parameters.size(); ++p) {
      run.model.layers[i].parameters[p].trained = described.layers[i].parameters[p].trained;
    }
  }
  return run;
}

// Whose group the engine counts an item's bytes for: groups of the same ranks are one.
std::string counted_as(const Item& item, const config::RunConfig& run, int64_t data_ranks) {
  const bool context = run.parallel.context > 1;
  if (item.axis == "data" && run.parallel.sequence_parallel && item.name.ends_with("holds whole")) {
    return data_ranks > 1 || context ? "data+tensor" : "tensor";
  }
  if (item.axis == "data" && context) {
    return data_ranks > 1 ? "data+context" : "context";
  }
  return item.axis == "pipe+tensor" && run.parallel.pipe == 1 ? "tensor" : item.axis;
}

mesh::Mesh mesh_of(comm::World& world, const config::RunConfig& run) {
  return mesh::training_mesh(world.group(), {.pipe = static_cast<int>(run.parallel.pipe),
                                             .context = static_cast<int>(run.parallel.context),
                                             .tensor = static_cast<int>(run.parallel.tensor)});
}

models::ModelRanks ranks_of(const mesh::Mesh& mesh, const config::RunConfig& run) {
  models::ModelRanks ranks;
  ranks.tensor = {mesh.group(mesh::Axis::tensor), run.parallel.sequence_parallel};
  ranks.context = mesh.group(mesh::Axis::context);
  ranks.context_kind = run.parallel.context_kind;
  return ranks;
}

engine::Initialized engine_of(comm::World& world, const config::RunConfig& run, const mesh::Mesh& mesh) {
  const models::ModelRanks ranks = ranks_of(mesh, run);
  engine::InitializeOptions options;
  options.config = run.engine;
  options.training_data = std::make_shared<Tokens>(run.model.gpt);
  options.mesh = mesh;
  options.sequence_parallel = run.parallel.sequence_parallel;
  const auto is_frozen = [&](const std::string& name) -> bool { return frozen_among(run.training.freeze, {name})[0]; };
  if (run.builds_layers()) {
    options.pipeline = std::make_shared<pipeline::PipelineModule>(
        pipeline::frozen(models::gpt_layers(run.model.gpt, ranks), is_frozen), models::gpt_loss(run.model.gpt, ranks),
        run.pipeline);
  } else {
    models::Gpt gpt_module(run.model.gpt, ranks);
    for (const auto& item : gpt_module->named_parameters()) {
      item.value().set_requires_grad(!is_frozen(item.key()));
    }
    options.model = gpt_module.ptr();
    options.loss = [gpt_module](const data::Batch& batch) mutable {
      return gpt_module->loss(batch.input(), batch.target());
    };
  }
  return engine::initialize(world, options);
}

class CountedBytes : public testing::TestWithParam<TrafficCase> {};

TEST_P(CountedBytes, AreTheFormulas) {
  const TrafficCase c = GetParam();
  const config::RunConfig run = run_config(c.overrides);
  EXPECT_THAT(
      run_ranks(c.ranks,
                [&](comm::World& world) {
                  const mesh::Mesh mesh = mesh_of(world, run);
                  const models::ModelRanks ranks = ranks_of(mesh, run);
                  const auto made = engine_of(world, run, mesh);
                  const auto sent_in_a_step = [&] {
                    std::map<std::string, int64_t> sent;
                    const std::map<std::string, int64_t> before = made.engine->bytes_sent_by_axes();
                    made.engine->train_batch();
                    for (const auto& [axes, bytes] : made.engine->bytes_sent_by_axes()) {
                      sent[axes] = bytes - before.at(axes);
                    }
                    return sent;
                  };
                  const auto traffic = traffic_of(on_tensor_rank(run, c.ranks, ranks.tensor.group.rank()));
                  std::map<std::string, int64_t> expected = sent_in_a_step();
                  const std::map<std::string, int64_t> first = expected;
                  for (auto& [axes, bytes] : expected) { // also those that send nothing
                    bytes = 0;
                  }
                  for (const Item& item : traffic.at(made.engine->pipe_group().rank()).items) {
                    expected[counted_as(item, run, made.engine->group().size())] += item.bytes;
                  }
                  if (run.parallel.pipe == 1 &&
                      run.engine.zero.stage < 3) { // else it announces shapes, or does not know what to gather ahead
                    EXPECT_EQ(first, expected);
                  }
                  sent_in_a_step();
                  EXPECT_EQ(sent_in_a_step(), expected);
                }),
      IsEmpty())
      << c.ranks << " ranks, " << testing::PrintToString(c.overrides);
}

class AveragedBytes : public testing::TestWithParam<TrafficCase> {};

// Of three rounds of three steps each: nothing but at their ends, and there what the formula says of a step, three
// times.
TEST_P(AveragedBytes, AreThoseOfTheMeetings) {
  const TrafficCase c = GetParam();
  config::RunConfig run = run_config(c.overrides);
  EXPECT_THAT(
      run_ranks(c.ranks,
                [&](comm::World& world) {
                  const int64_t every = run.engine.averaging.every;
                  engine::InitializeOptions options;
                  options.config = run.engine;
                  options.training_data = std::make_shared<Tokens>(run.model.gpt);
                  options.mesh = mesh::training_mesh(world.group(), {.tensor = static_cast<int>(run.parallel.tensor)});
                  models::ModelRanks ranks;
                  ranks.tensor = {options.mesh->group(mesh::Axis::tensor), false};
                  models::Gpt model(run.model.gpt, ranks);
                  options.model = model.ptr();
                  options.loss = [model](const data::Batch& batch) mutable {
                    return model->loss(batch.input(), batch.target());
                  };
                  const auto made = engine::initialize(world, options);
                  const estimate::Run described = on_tensor_rank(run, c.ranks, ranks.tensor.group.rank());
                  const auto traffic = traffic_of(described);
                  int64_t expected = 0;
                  for (const Item& item : traffic.front().items) {
                    expected += item.axis == "data" ? item.bytes : 0;
                  }
                  for (int64_t step = 1; step <= 2 * every; ++step) { // step times travel later
                    const int64_t before = made.engine->bytes_sent_by_axes().at("data");
                    made.engine->train_batch();
                    const int64_t sent = made.engine->bytes_sent_by_axes().at("data") - before;
                    if (step % every == 0) {
                      EXPECT_NEAR(sent, every * expected, 5 * every) << "each item is rounded down to a step's part";
                    } else {
                      EXPECT_EQ(sent, 0);
                    }
                  }
                }),
      IsEmpty())
      << c.ranks << " ranks, " << testing::PrintToString(c.overrides);
}

std::vector<TrafficCase> averaging_cases() {
  const auto section = [](const char* keys) { return concat(R"(engine.parameter_averaging={"every": 3)", keys, "}"); };
  std::vector<TrafficCase> all;
  for (const int ranks : {2, 3, 4}) {
    all.push_back({ranks, {section("")}});
    all.push_back({ranks, {section(R"(, "outer_optimizer": "nesterov")")}});
    all.push_back({ranks, {section(R"(, "outer_optimizer": "slowmo", "states": "average")")}});
  }
  all.push_back({2, {section(R"(, "states": "average")"), "engine.bf16.enabled=true"}});
  all.push_back({2, {section(R"(, "states": "average")"), "engine.optimizer.type=Lion"}});
  all.push_back({4, {section(""), "model.heads=4", "model.vocab_size=76", "parallel.tensor=2"}});
  return all;
}

std::vector<TrafficCase> compressed_cases() {
  std::vector<TrafficCase> all;
  for (const int ranks : {2, 3}) {
    for (const char* kind : {R"({"kind": "sign"})", R"({"kind": "eight_bit"})", R"({"kind": "top_k", "ratio": 0.03})",
                             R"({"kind": "power_sgd", "rank": 3})"}) {
      for (const int stage : {0, 1}) {
        all.push_back(
            {ranks, {concat("engine.gradient_compression=", kind), concat("engine.zero_optimization.stage=", stage)}});
      }
    }
    all.push_back({ranks, {"engine.optimizer.type=OneBitAdam", "engine.optimizer.params.freeze_step=1"}});
    all.push_back({ranks,
                   {"engine.optimizer.type=OneBitLamb", "engine.optimizer.params.freeze_step=1",
                    "engine.gradient_accumulation_steps=2"}});
    all.push_back({ranks,
                   {"engine.optimizer.type=OneBitLamb", "engine.optimizer.params.freeze_step=1",
                    "engine.zero_optimization.stage=1", "engine.bf16.enabled=true"}});
    all.push_back(
        {ranks,
         {"engine.optimizer.type=ZeroOneAdam", "engine.optimizer.params.var_update_scaler=1"}}); // step 3 compresses
  }
  all.push_back({4,
                 {"parallel.pipe=2", "engine.gradient_accumulation_steps=4", "engine.optimizer.type=OneBitAdam",
                  "engine.optimizer.params.freeze_step=1"}});
  all.push_back({4,
                 {"parallel.pipe=2", "engine.gradient_accumulation_steps=4",
                  R"(engine.gradient_compression={"kind": "power_sgd", "rank": 2})"}});
  return all;
}

// The third step, which compresses in each of these; ZeRO's first such step also gathers moments.
class CountedCompressedBytes : public testing::TestWithParam<TrafficCase> {};

TEST_P(CountedCompressedBytes, AreTheFormulas) {
  const TrafficCase c = GetParam();
  const config::RunConfig run = run_config(c.overrides);
  EXPECT_THAT(run_ranks(c.ranks,
                        [&](comm::World& world) {
                          const auto made = engine_of(world, run, mesh_of(world, run));
                          made.engine->train_batch();
                          made.engine->train_batch();
                          const int64_t before = made.engine->bytes_sent();
                          made.engine->train_batch();
                          const auto described = plan::describe(run, c.ranks).run;
                          const auto stage = static_cast<size_t>(made.engine->pipe_group().rank());
                          EXPECT_EQ(made.engine->bytes_sent() - before,
                                    traffic_of(described, Step::compressed).at(stage).bytes());
                          EXPECT_LT(traffic_of(described, Step::compressed).at(stage).bytes(),
                                    traffic_of(described).at(stage).bytes());
                        }),
              IsEmpty())
      << c.ranks << " ranks, " << testing::PrintToString(c.overrides);
}

INSTANTIATE_TEST_SUITE_P(All, AveragedBytes, testing::ValuesIn(averaging_cases()),
                         [](const auto& info) { return concat(info.index); });
INSTANTIATE_TEST_SUITE_P(All, CountedCompressedBytes, testing::ValuesIn(compressed_cases()),
                         [](const auto& info) { return concat(info.index); });
INSTANTIATE_TEST_SUITE_P(Frozen, CountedBytes, testing::ValuesIn(frozen_cases()),
                         [](const auto& info) { return concat(info.index); });
INSTANTIATE_TEST_SUITE_P(Split, CountedBytes, testing::ValuesIn(split_cases()),
                         [](const auto& info) { return concat(info.index); });
INSTANTIATE_TEST_SUITE_P(All, CountedBytes, testing::ValuesIn(cases()),
                         [](const auto& info) { return concat(info.index); });

} // namespace
} // namespace trireme::estimate
