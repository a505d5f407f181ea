#include <trireme/base/error.h>
#include <trireme/plan/estimate/memory.h>
#include <trireme/plan/run_estimate.h>

#include <gmock/gmock.h>

namespace trireme::config {
namespace {

using plan::describe;
using plan::RunEstimate;
using testing::ElementsAre;

RunEstimate described(int64_t ranks, const std::vector<std::string>& overrides = {}) {
  const std::string text =
      R"({"model": {"type": "gpt", "layers": 6, "hidden": 32, "heads": 2, "sequence_length": 16, "vocab_size": 50},
    "data": {"type": "tokens", "train": ["t.bin"]}, "training": {"steps": 3},
    "engine": {"train_batch_size": 48, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}})";
  return describe(read_run(JsonNode::parse(text, "run.json"), "/", overrides), ranks);
}

std::string why_refused(int64_t ranks, const std::vector<std::string>& overrides) {
  try {
    described(ranks, overrides);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(RunEstimateTest, TakesTheNumbersOver) {
  const estimate::Run run = described(4, {"engine.gradient_accumulation_steps=3", "engine.zero_optimization.stage=2",
                                          "engine.bf16.enabled=true", "engine.gradient_clipping=0",
                                          "engine.zero_optimization.reduce_bucket_size=1000"})
                                .run;
  EXPECT_EQ(run.data_ranks, 4);
  EXPECT_EQ(run.micro_batch, 4);
  EXPECT_EQ(run.accumulation, 3);
  EXPECT_EQ(run.zero.stage, 2);
  EXPECT_EQ(run.precision.compute, estimate::Type::bf16);
  EXPECT_EQ(run.gradients(), estimate::Type::fp32);
  EXPECT_FALSE(run.steps_in_backward);
  EXPECT_EQ(run.data_parallel.bucket_bytes, 4000);
  EXPECT_FALSE(run.layer_list);
}

// The same answer that ranks give, before there are any.
TEST(RunEstimateTest, RefusesWhatRanksWouldRefuse) {
  const auto refused = [](std::vector<std::string> overrides, const std::string& where = "cuda") -> std::string {
    overrides.push_back("training.device=" + where);
    try {
      described(2, overrides);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::string stage = "engine.zero_optimization.stage=3";
  const std::string host = R"(engine.zero_optimization.offload_optimizer={"device": "cpu"})";
  const std::string part = R"(engine.zero_optimization.offload_optimizer={"device": "cpu", "ratio": 0.5})";
  const std::string files = R"(engine.zero_optimization.offload_param={"device": "nvme", "nvme_path": "/n"})";
  EXPECT_EQ(refused({stage, host, files}), "accepted");
  EXPECT_EQ(refused({stage, host, files}, "cpu"), "accepted");
  EXPECT_EQ(refused({stage, files}), "accepted") << "states stay on the device";
  EXPECT_EQ(refused({stage, part, files}), "accepted");
  EXPECT_THAT(refused({part, R"(engine.optimizer={"type": "Lamb", "params": {"lr": 0.01}})"}),
              testing::HasSubstr("norms of whole parameters in one place"));
  EXPECT_EQ(refused({part}), "accepted");
}

// DeepSpeed's default is a billion elements.
TEST(RunEstimateTest, SaysWhatMaxInCpuKeepsOutOfFiles) {
  const auto notes = [](const std::string& most) {
    return described(
               2, {"engine.zero_optimization.stage=3", "engine.zero_optimization.stage3_param_persistence_threshold=0",
                   concat(R"(engine.zero_optimization.offload_param={"device": "nvme", "nvme_path": "/n")", most, "}")})
        .notes;
  };
  EXPECT_THAT(notes(""),
              ElementsAre(testing::AllOf(testing::HasSubstr("all "),
                                         testing::HasSubstr(" kB, stay in memory, because max_in_cpu is 1000000000"),
                                         testing::HasSubstr("\"max_in_cpu\": 0"))));
  EXPECT_THAT(notes(R"(, "max_in_cpu": 20000)"),
              ElementsAre(testing::HasSubstr(" of the "), testing::HasSubstr("hold all 4 buckets of parameters")));
  EXPECT_THAT(notes(R"(, "max_in_cpu": 0)"), testing::IsEmpty());
}

// Files save memory only where there are more buckets than buffers.
TEST(RunEstimateTest, SaysThatBuffersHoldAllThatIsInFiles) {
  const auto notes = [](const std::string& more) {
    return described(
               2, {"engine.zero_optimization.stage=1",
                   concat(R"(engine.zero_optimization.offload_optimizer={"device": "nvme", "nvme_path": "/n")", more)})
        .notes;
  };
  EXPECT_THAT(notes("}"), ElementsAre(testing::AllOf(
                              testing::HasSubstr("offload_optimizer to \"nvme\" saves no memory: its buffers "
                                                 "(buffer_count) hold all 1 bucket of masters and states, "),
                              testing::EndsWith(". To save some: a smaller \"reduce_bucket_size\""))));
  const std::vector<std::string> small = {
      "engine.zero_optimization.stage=1", "engine.zero_optimization.reduce_bucket_size=1000",
      R"(engine.zero_optimization.offload_optimizer={"device": "nvme", "nvme_path": "/n"})"};
  EXPECT_THAT(described(2, small).notes, testing::IsEmpty());
  std::vector<std::string> many = small;
  many.emplace_back("engine.zero_optimization.offload_optimizer.buffer_count=1000");
  EXPECT_THAT(described(2, many).notes,
              ElementsAre(testing::HasSubstr("To save some: \"buffer_count\": 3, or a smaller")));
}

TEST(RunEstimateTest, SaysThatNoBucketLiesWithinTheRatio) {
  const auto notes = [](const char* ratio) {
    return described(1,
                     {"training.device=cuda",
                      concat(R"(engine.zero_optimization.offload_optimizer={"device": "cpu", "ratio": )", ratio, "}")})
        .notes;
  };
  EXPECT_THAT(notes("0.2"), ElementsAre(testing::HasSubstr("offload_optimizer moves nothing: buckets move whole, and "
                                                           "none lies in the first 0.2 of the parameters (ratio)")));
  EXPECT_THAT(notes("0.8"), testing::IsEmpty());
  EXPECT_THAT(notes("0"), testing::IsEmpty()) << "as asked";
}

TEST(RunEstimateTest, SaysThatAllParametersAreTooSmallToBeMoved) {
  const auto notes = [](int64_t threshold) {
    return described(
               2, {"engine.zero_optimization.stage=3",
                   concat("engine.zero_optimization.stage3_param_persistence_threshold=", threshold),
                   R"(engine.zero_optimization.offload_param={"device": "nvme", "nvme_path": "/n", "max_in_cpu": 0})"})
        .notes;
  };
  EXPECT_THAT(
      notes(1'000'000),
      ElementsAre(testing::HasSubstr(
          "moves nothing: each parameter has fewer than 1000000 elements (stage3_param_persistence_threshold)")));
  EXPECT_THAT(notes(0), testing::IsEmpty());
  const std::vector<std::string> cnn = {
      R"(model={"type": "cnn"})", R"(data={"type": "images", "train": ["a"], "train_labels": ["b"]})",
      "engine.zero_optimization.stage=3",
      R"(engine.zero_optimization.offload_param={"device": "nvme", "nvme_path": "/n", "max_in_cpu": 0})"};
  EXPECT_THAT(described(2, cnn).notes, testing::Contains(testing::HasSubstr("none of its modules is sharded")));
}

TEST(RunEstimateTest, KnowsAnAlexNet) {
  const std::string model = R"(model={"type": "alexnet", "classes": 1000, "resize": 224})";
  const std::string data = R"(data={"type": "images", "train": ["a"], "train_labels": ["b"]})";
  const RunEstimate run = described(1, {model, data});
  EXPECT_EQ(run.run.model.parameters(), 61'100'840) << "what torchvision documents";
  EXPECT_EQ(run.run.model.layers.size(), 23u) << "those of alexnet_layers()";
  EXPECT_TRUE(run.run.layer_list);
  EXPECT_THAT(described(2, {model, data, "parallel.pipe=2"}).run.bounds, testing::SizeIs(3));
  EXPECT_THAT(why_refused(1, {R"(model={"type": "alexnet"})", data}), testing::HasSubstr("the size of the images"));
}

// Parameters of BERT-base with the head of masked_lm: those of transformers' BertForMaskedLM.
TEST(RunEstimateTest, KnowsABert) {
  const std::string size = R"("type": "bert", "layers": 12, "hidden": 768, "heads": 12, "sequence_length": 512)";
  const std::string masked = concat("model={", size, R"(, "vocab_size": 30522, "mask_token": 103})");
  const auto parameters = [](const RunEstimate& run) { return run.run.model.parameters(); };
  EXPECT_EQ(parameters(described(1, {masked})), 109'514'298);
  EXPECT_EQ(described(1, {masked}).run.model.layers.size(), 17u) << "two of embeddings, three of the head";
  const std::vector<std::string> classes = {
      concat("model={", size, R"(, "vocab_size": 30522, "head": "classes"})"),
      R"(data={"type": "labelled_text", "train": ["t"], "tokenizer": "tokenizer.json", "sequence_length": 128})"};
  EXPECT_EQ(parameters(described(1, classes)), 109'483'778);
  const int64_t half = parameters(described(2, {masked, "parallel.tensor=2"}));
  EXPECT_LT(half, int64_t{109'514'298} * 52 / 100);
  EXPECT_GT(half, 109'514'298 / 2);
}

TEST(RunEstimateTest, RefusesChoicesForAnotherNumberOfParts) {
  const auto of = [](const char* choices) {
    return described(1, {concat(R"(engine.activation_checkpointing={"nvme_path": "/n", "choices": )", choices, "}")});
  };
  const int64_t layers =
      described(1, {}).run.model.layers.empty()
          ? 0
          : std::ranges::count_if(described(1, {}).run.model.layers, [](const estimate::Layer& layer) {
              return layer.is_unit && layer.type.find("Block") != std::string::npos;
            });
  ASSERT_GT(layers, 1);
  EXPECT_NO_THROW(of(concat("[\"", layers, "*nvme\"]").c_str()));
  for (const int64_t other : {layers - 1, layers + 1}) {
    try {
      of(concat("[\"", other, "*nvme\"]").c_str());
      ADD_FAILURE() << other;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(concat("choices has ", other))) << other;
    }
  }
}

// What needs least is named, and is accepted.
TEST(RunEstimateTest, RefusesABudgetThatNothingFits) {
  const auto with_budget = [](int64_t bytes, const std::string& more) {
    return concat(R"(engine.activation_checkpointing={"policy": "auto", "memory_budget": )", bytes, more, "}");
  };
  for (const std::string pipe : {"1", "2"}) {
    for (const std::string more : {"", R"(, "nvme_path": "/n")"}) {
      const auto why = [&](int64_t bytes) {
        return why_refused(2, {"parallel.pipe=" + pipe, with_budget(bytes, more)});
      };
      const std::string no = why(1);
      EXPECT_THAT(no, testing::HasSubstr(pipe == "1" ? "parts fits memory_budget" : "parts of stage "));
      EXPECT_THAT(no, testing::HasSubstr(!more.empty() && pipe == "1" ? "recompute_nvme. Raise" : "recompute"));
      EXPECT_EQ(no.find("give an nvme_path") != std::string::npos, more.empty());
      const std::string words = "Raise memory_budget to ";
      ASSERT_NE(no.find(words), std::string::npos) << no;
      const int64_t least = std::stoll(no.substr(no.find(words) + words.size()));
      EXPECT_EQ(why(least), "");
      EXPECT_EQ(why(least * 96 / 100), "") << "the estimate may be too high";
      EXPECT_NE(why(least * 95 / 100), "");
    }
  }
}

TEST(RunEstimateTest, RefusesClassesThatAreNoParts) {
  const auto why = [](const std::string& policy, const std::string& layers) {
    return why_refused(
        1, {concat(R"(engine.activation_checkpointing={"policy": )", policy, R"(, "layers": ")", layers, "\"}")});
  };
  for (const char* const policy : {R"("recompute")", R"("auto", "memory_budget": "1GB")"}) {
    EXPECT_THAT(why(policy, "LlamaBlock"),
                testing::HasSubstr("\"LlamaBlock\" matches no class of a part of the model: there are GptBlock"));
    EXPECT_EQ(why(policy, "^Gpt"), "");
  }
}

TEST(RunEstimateTest, KnowsWhereThingsAre) {
  const std::vector<std::string> offload = {
      "engine.zero_optimization.stage=3", "engine.zero_optimization.stage3_param_persistence_threshold=0",
      R"(engine.zero_optimization.offload_optimizer={"device": "nvme", "nvme_path": "/n", "buffer_count": 6})",
      R"(engine.zero_optimization.offload_param={"device": "cpu"})"};
  const RunEstimate on_cpu = described(2, offload);
  EXPECT_EQ(on_cpu.run.offload.optimizer.place, offload::Place::nvme);
  EXPECT_EQ(on_cpu.run.offload.optimizer.buffer_count, 6);
  EXPECT_EQ(on_cpu.run.offload.parameters.place, offload::Place::host);
  EXPECT_FALSE(on_cpu.run.on_device);
  EXPECT_THAT(on_cpu.notes, ElementsAre(testing::HasSubstr("offload_param to the host has no effect")));
  EXPECT_FALSE(on_cpu.run.moves_parameters());
  std::vector<std::string> on_gpu = offload;
  on_gpu.emplace_back("training.device=cuda:1");
  EXPECT_TRUE(described(2, on_gpu).run.on_device);
  EXPECT_TRUE(described(2, on_gpu).run.moves_parameters());
  EXPECT_THAT(described(2, on_gpu).notes, testing::IsEmpty());
}

TEST(RunEstimateTest, CountsTheStatesOfEveryOptimizer) {
  const auto states = [](const std::string& type, const std::string& more = "") {
    std::vector<std::string> overrides = {
        concat("engine.optimizer={\"type\": \"", type, "\", \"params\": {\"lr\": 0.1", more, "}}")};
    return described(1, overrides).run.states();
  };
  EXPECT_EQ(states("Adam"), 2);
  EXPECT_EQ(states("SGD"), 0);
  EXPECT_EQ(states("SGD", ", \"momentum\": 0.9"), 1);
  EXPECT_EQ(states("Lamb"), 2);
  EXPECT_EQ(states("Lion"), 1);
  EXPECT_EQ(states("Adagrad"), 1);
}

TEST(RunEstimateTest, KnowsWhatSchedulesKeep) {
  const auto in_flight = [](const std::string& schedule) {
    return described(
               2, {"parallel.pipe=2", concat("parallel.schedule=", schedule), "engine.gradient_accumulation_steps=8"})
        .run.in_flight;
  };
  EXPECT_THAT(in_flight("naive"), ElementsAre(ElementsAre(1), ElementsAre(1)));
  EXPECT_THAT(in_flight("gpipe"), ElementsAre(ElementsAre(8), ElementsAre(8)));
  EXPECT_THAT(in_flight("1f1b"), ElementsAre(ElementsAre(2), ElementsAre(1)));
  EXPECT_THAT(in_flight("interleaved").at(0), testing::SizeIs(2));
  const auto waiting = [](const std::string& schedule) {
    return described(
               2, {"parallel.pipe=2", concat("parallel.schedule=", schedule), "engine.gradient_accumulation_steps=8"})
        .run.most_held;
  };
  EXPECT_THAT(waiting("1f1b"), testing::IsEmpty());
  EXPECT_THAT(waiting("zero-bubble"), testing::SizeIs(2));
  EXPECT_EQ(waiting("zero-bubble").at(1), (pipeline::HeldMicroBatches{2, 2}))
      << "both micro-batches of the last stage wait for their weights' gradients";
  EXPECT_EQ(described(2, {"parallel.pipe=2", "engine.pipeline.partition=uniform"}).run.bounds,
            (std::vector<int64_t>{0, 5, 10}));
  EXPECT_EQ(described(2, {"parallel.pipe=2", "engine.pipeline.partition=type:block"}).run.bounds[1], 5)
      << "three blocks each";
}

// As the ranks would.
TEST(RunEstimateTest, RefusesAPartitionThatMatchesNoLayer) {
  try {
    described(2, {"parallel.pipe=2", "engine.pipeline.partition=type:Convolution"});
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("\"type:Convolution\" matches no layer"));
  }
}

TEST(RunEstimateTest, RefusesRanksThatDoNotFit) {
  EXPECT_THROW(described(3, {"parallel.pipe=2"}), InputError);
  EXPECT_THROW(described(0), InputError);
  EXPECT_THROW(described(5), InputError) << "48 samples";
}

} // namespace
} // namespace trireme::config
