#include <trireme/base/error.h>
#include <trireme/config/run_file.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace trireme::config {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kMinimal = R"({
  "model": {"type": "gpt"},
  "data": {"type": "text", "train": "train.txt"},
  "training": {"steps": 10},
  "engine": {"train_batch_size": 8, "optimizer": {"type": "AdamW"}}
})";

class RunFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "trireme_run_file_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = fs::canonical(name);
    write("train.txt", "some text");
    write("validation.txt", "some other text");
    write("images", "");
    write("labels", "");
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  RunConfig read(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return read_run_file(write("run.json", text), overrides);
  }
  std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
    try {
      read(text, overrides);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
  // The minimal file with one section replaced.
  static std::string with(const std::string& section, const std::string& text) {
    auto run = nlohmann::ordered_json::parse(kMinimal);
    run[section] = nlohmann::ordered_json::parse(text);
    return run.dump(2);
  }

  fs::path folder_;
};

TEST_F(RunFileTest, MinimalFileAndItsDefaults) {
  const RunConfig run = read(kMinimal);
  EXPECT_EQ(run.model.kind, ModelConfig::Kind::gpt);
  EXPECT_EQ(run.model.gpt.layers, 4);
  EXPECT_EQ(run.model.gpt.vocab_size, 256) << "of the tokenizer \"bytes\"";
  EXPECT_EQ(run.data.kind, data::DataOptions::Kind::text);
  EXPECT_THAT(run.data.train, ElementsAre(folder_ / "train.txt"));
  EXPECT_EQ(run.data.tokenizer, "bytes");
  EXPECT_EQ(run.data.sequence_length, 128);
  EXPECT_EQ(run.data.vocab_size, 256);
  EXPECT_FALSE(run.parallel.data.has_value());
  EXPECT_EQ(run.training.steps, 10);
  EXPECT_EQ(run.engine.batch_for(2), (BatchTriple{8, 4, 1}));
  EXPECT_FALSE(run.data.drop_last) << "as DeepSpeed's dataloader_drop_last";
  EXPECT_THAT(run.notes, IsEmpty());
}

TEST_F(RunFileTest, FullGptFile) {
  write("vocabulary/tokenizer.json", "{}");
  write("weights/model.safetensors", "");
  const RunConfig run = read(R"({
    "$schema": "docs/run.schema.json",
    "model": {"type": "gpt", "layers": 2, "hidden": 48, "heads": 3, "sequence_length": 32, "tie_embeddings": false, "dropout": 0.1, "init_from": "weights"},
    "data": {"type": "text", "train": ["train.txt", "validation.txt"], "validation_fraction": 0.1, "tokenizer": "vocabulary/tokenizer.json", "shuffle": false, "prefetch": 0},
    "parallel": {"pipe": 1, "tensor": 1, "data": 2, "schedule": "1f1b"},
    "training": {"steps": 100, "seed": 7, "device": "cuda:1", "eval_every": 10, "eval_batches": 4, "checkpoint_every": 50, "keep_checkpoints": 5,
                 "sample": {"prompt": "It is", "tokens": 20, "temperature": 0, "top_k": 3}},
    "engine": {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "optimizer": {"type": "AdamW"}, "dataloader_drop_last": true}
  })");
  EXPECT_EQ(run.model.gpt.heads, 3);
  EXPECT_EQ(run.model.gpt.vocab_size, 0) << "the tokenizer's, known when it is loaded";
  EXPECT_EQ(run.model.gpt.init_from, folder_ / "weights");
  EXPECT_EQ(run.data.tokenizer, (folder_ / "vocabulary/tokenizer.json").string());
  EXPECT_EQ(run.data.train.size(), 2u);
  EXPECT_EQ(run.data.sequence_length, 32);
  EXPECT_EQ(run.data.prefetch, 0);
  EXPECT_TRUE(run.data.drop_last);
  EXPECT_EQ(run.parallel.data, 2);
  EXPECT_EQ(run.training.device, "cuda:1");
  EXPECT_EQ(run.training.sample->top_k, 3);
  EXPECT_EQ(run.training.sample->prompt, "It is");
  for (const int64_t seed : {run.training.seed, run.engine.seed, run.data.seed, run.model.gpt.seed}) {
    EXPECT_EQ(seed, 7);
  }
  EXPECT_EQ(run.engine.checkpoint.keep_last, 5);
}

TEST_F(RunFileTest, CnnOnImages) {
  const RunConfig run = read(R"({
    "model": {"type": "cnn", "classes": 5},
    "data": {"type": "images", "train": "images", "train_labels": ["labels"], "validation": "images", "validation_labels": "labels", "mean": 0.28, "std": 0.35},
    "training": {"steps": 10},
    "engine": {"train_batch_size": 8, "optimizer": {"type": "SGD"}}
  })");
  EXPECT_EQ(run.model.kind, ModelConfig::Kind::cnn);
  EXPECT_EQ(run.data.kind, data::DataOptions::Kind::images);
  EXPECT_EQ(run.data.classes, 5);
  EXPECT_EQ(run.data.mean, 0.28);
  EXPECT_THAT(run.data.train_labels, ElementsAre(folder_ / "labels"));
  EXPECT_THAT(run.data.validation, ElementsAre(folder_ / "images"));
  EXPECT_THAT(run.data.validation_labels, ElementsAre(folder_ / "labels"));
  EXPECT_EQ(run.resolved["data"]["validation_labels"][0], (folder_ / "labels").string());
}

TEST_F(RunFileTest, ResolvedSaysTheSameFromAnywhere) {
  write("ds.json", R"({"train_batch_size": 8, "optimizer": {"type": "SGD"}})");
  const RunConfig run = read(with("engine", "\"ds.json\""), {"training.sample.prompt=Emma", "parallel.data=2"});
  EXPECT_EQ(run.resolved["engine"]["optimizer"]["type"], "SGD");
  EXPECT_EQ(run.resolved["data"]["train"][0], (folder_ / "train.txt").string());
  const RunConfig again = read_run(JsonNode::parse(run.resolved.dump(), "manifest"), "/no/such/folder");
  EXPECT_EQ(again.resolved, run.resolved);
  EXPECT_EQ(again.data.train, run.data.train);
  EXPECT_EQ(again.training.sample->prompt, "Emma");
  EXPECT_EQ(to_json(again.engine), to_json(run.engine));
}

TEST_F(RunFileTest, PathsStartAtTheFileThenAtTheWorkingDirectory) {
  const fs::path before = fs::current_path();
  write("elsewhere/only_here.txt", "x");
  fs::current_path(folder_ / "elsewhere");
  const RunConfig run = read(with("data", R"({"type": "text", "train": ["train.txt", "only_here.txt"]})"));
  fs::current_path(before);
  EXPECT_THAT(run.data.train, ElementsAre(folder_ / "train.txt", folder_ / "elsewhere/only_here.txt"));
}

// As they are made there, unlike files that are to be read.
TEST_F(RunFileTest, FoldersOfFilesStartAtTheWorkingDirectory) {
  const fs::path before = fs::current_path();
  fs::create_directories(folder_ / "elsewhere");
  fs::current_path(folder_ / "elsewhere");
  const RunConfig run = read(with(
      "engine",
      R"({"train_batch_size": 8, "activation_checkpointing": {"policy": "nvme", "nvme_path": "a/../b"}, "zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "states"}, "offload_param": {"device": "nvme", "nvme_path": "."}}})"));
  fs::current_path(before);
  EXPECT_EQ(run.engine.offload.optimizer.nvme_path, (folder_ / "elsewhere/states").string());
  EXPECT_EQ(run.engine.offload.parameters.nvme_path, (folder_ / "elsewhere").string() + "/");
  EXPECT_EQ(run.engine.activations.nvme_path, (folder_ / "elsewhere/b").string());
}

TEST_F(RunFileTest, OverridesReplaceAndSayWhereTheyCameFrom) {
  const RunConfig run = read(kMinimal, {"training.steps=20", "training.steps=30", "engine.optimizer.params.lr=0.01",
                                        "model.tie_embeddings=false"});
  EXPECT_EQ(run.training.steps, 30);
  EXPECT_EQ(run.engine.optimizer->lr(), 0.01);
  EXPECT_FALSE(run.model.gpt.tie_embeddings);
  EXPECT_THAT(error_of(kMinimal, {"training.steps=many"}),
              HasSubstr("[config] --set training.steps: must be a whole number"));
  EXPECT_THAT(error_of(kMinimal, {"training.step=1"}),
              AllOf(HasSubstr("--set training.step: unknown key"), HasSubstr("\"steps\"")));
  EXPECT_THAT(error_of(kMinimal, {"training.steps"}),
              AllOf(HasSubstr("--set training.steps: this is not path=value"), HasSubstr("training.steps=100")));
  EXPECT_THAT(error_of(kMinimal, {"=5"}), HasSubstr("not path=value"));
  EXPECT_THAT(error_of(kMinimal, {"training.steps.x=5"}), HasSubstr("has no keys"));
}

TEST_F(RunFileTest, TheEnginesFileIsReadAndOverridden) {
  write("ds.json", R"({"train_batch_size": 8, "optimizer": {"type": "AdamW"}})");
  write("other.json", R"({"train_batch_size": 4, "optimizer": {"type": "SGD"}})");
  const std::string text = with("engine", "\"ds.json\"");
  EXPECT_EQ(read(text).engine.batch.train, 8);
  EXPECT_EQ(read(text, {"engine.train_batch_size=16"}).engine.batch.train, 16);
  const RunConfig other = read(text, {"engine=other.json", "engine.gradient_clipping=0"});
  EXPECT_EQ(other.engine.batch.train, 4);
  EXPECT_EQ(other.engine.gradient_clipping, 0);
  write("ds.json", "{\"train_batch_size\": 8,\n \"sparse_gradients\": true}");
  EXPECT_THAT(error_of(text), AllOf(HasSubstr("ds.json:2:22: sparse_gradients: not yet")));
  EXPECT_THAT(error_of(with("engine", "\"missing.json\"")),
              AllOf(HasSubstr(": engine: there is no file"), HasSubstr("missing.json")));
  EXPECT_THAT(error_of(with("engine", "[1]")), HasSubstr(": engine: must be an object, found an array"));
}

TEST_F(RunFileTest, MistakesAreNamedWithTheirPlace) {
  struct Bad {
    const char* section;
    const char* text;
    std::vector<const char*> parts;
  };
  const std::vector<Bad> all = {
      {"model", R"({"type": "gtp"})", {"model.type: \"gtp\" is not one of the choices", "Did you mean \"gpt\"?"}},
      {"model", R"({"layers": 2})", {"model: the key \"type\" is missing"}},
      {"model", R"({"type": "gpt", "layer": 2})", {"model.layer: unknown key", "\"layers\""}},
      {"model", R"({"type": "gpt", "layers": 0})", {"model.layers: must be a whole number >= 1, found 0"}},
      {"model", R"({"type": "gpt", "layers": 1000000000})", {"model.layers: 1000000000 layers are more than 100000"}},
      {"model",
       R"({"type": "gpt", "hidden": 48000000000})",
       {"model: it would have 1.", "e+23 parameters, more than 1e+15"}},
      {"model",
       R"({"type": "gpt", "sequence_length": 1000000000000})",
       {"model.sequence_length: a sample of 1000000000000 tokens makes tensors of "}},
      {"model", R"({"type": "gpt", "dropout": 1})", {"model.dropout: must be a number from 0 to below 1"}},
      {"model",
       R"({"type": "gpt", "hidden": 64, "heads": 3})",
       {"model.heads: heads must divide hidden, found 3 heads and hidden 64", "model.hidden at "}},
      {"model",
       R"({"type": "gpt", "vocab_size": 128})",
       {"model.vocab_size: 128 tokens are too few for the tokenizer \"bytes\""}},
      {"model", R"({"type": "gpt", "init_from": "nothing"})", {"model.init_from: there is no file", "nothing"}},
      {"model",
       R"({"type": "cnn"})",
       {"model.type: a cnn with data of type tokens, text, jsonl or mixture: it learns from images (data.type at ",
        "Use data of type \"images\""}},
      {"model", "\"gpt\"", {"model: must be an object, found a string"}},
      {"data",
       R"({"type": "texts", "train": "train.txt"})",
       {"data.type: \"texts\" is not one of the choices", "\"text\""}},
      {"data", R"({"type": "text"})", {"data: the key \"train\" is missing", "Text files"}},
      {"data",
       R"({"type": "text", "train": "train.tx"})",
       {"data.train: there is no file", "train.tx", "trireme data fetch"}},
      {"data", R"({"type": "text", "train": ""})", {"data.train: the path is empty"}},
      {"data", R"({"type": "text", "train": ["train.txt", 5]})", {"data.train[1]: must be a string"}},
      {"data",
       R"({"type": "text", "train": "train.txt", "tokenizer": "no.json"})",
       {"data.tokenizer: there is no file"}},
      {"data",
       R"({"type": "text", "train": "train.txt", "sequence_length": 64})",
       {"data.sequence_length: 64 is not the model's 128", "Leave out the one in \"data\""}},
      {"data",
       R"({"type": "text", "train": "train.txt", "validation": "validation.txt", "validation_fraction": 0.1})",
       {"data.validation_fraction: a validation_fraction with validation files: both ", "(data.validation at "}},
      {"data",
       R"({"type": "text", "train": "train.txt", "validation_fraction": 1})",
       {"data.validation_fraction: must be a number from 0 to below 1"}},
      {"data",
       R"({"type": "tokens", "train": "train.txt"})",
       {"model: \"vocab_size\" is missing, and there is no tokenizer to ask, data.type at "}},
      {"data",
       R"({"type": "tokens", "train": "train.txt", "tokenizer": "bytes", "token_bytes": 3})",
       {"data.token_bytes: tokens have 2 or 4 bytes"}},
      {"data",
       R"({"type": "tokens", "train": "train.txt", "tokenizer": "bytes", "token_bytes": 8})",
       {"data.token_bytes: must be a whole number from 2 to 4"}},
      {"data",
       R"({"type": "tokens", "train": "train.txt", "validation_fraction": 0.1})",
       {"data.validation_fraction: unknown key"}},
      {"data",
       R"({"type": "images", "train": "images", "train_labels": "labels"})",
       {"model.type: a gpt with data of type images: it learns from tokens"}},
      {"parallel", R"({"pipe": 0})", {"parallel.pipe: must be a whole number from 1 to 4096"}},
      {"parallel",
       R"({"pipe": 2, "schedule": "zero-bubble", "chunks": 2})",
       {"parallel.chunks: \"zero-bubble\" has one part"}},
      {"parallel", R"({"expert": 4})", {"parallel.expert: not yet: "}},
      {"parallel", R"({"tensor": 3})", {"parallel.tensor: 3 tensor ranks cannot share "}},
      {"parallel",
       R"({"context": 3})",
       {"parallel.context: the 6 chunks of 3 context ranks, two each in a ring, cannot share ",
        "or a model.sequence_length that 6 divides"}},
      {"parallel", R"({"context": 3, "context_kind": "ulysses"})", {"parallel.context: 3 context ranks cannot share "}},
      {"parallel", R"({"context": 8, "context_kind": "ulysses"})", {"parallel.context: 8 context ranks cannot share "}},
      {"parallel",
       R"({"context_kind": "loop"})",
       {"parallel.context_kind: \"loop\" is not one of the choices", "ring, ulysses"}},
      {"parallel", R"({"data": 0})", {"parallel.data: must be a whole number >= 1 or \"auto\", found 0"}},
      {"parallel", R"({"data": "all"})", {"parallel.data: must be a whole number"}},
      {"parallel", R"({"data": 3})", {"the batch sizes do not fit 3 data ranks", "9 = 3 * 1 * 3", "run.json:"}},
      {"parallel", R"({"schedule": "1f2b"})", {"parallel.schedule: \"1f2b\" is not one of the choices", "\"1f1b\""}},
      {"training", R"({})", {"training: the key \"steps\" is missing"}},
      {"training", R"({"steps": 0})", {"training.steps: must be a whole number >= 1, found 0"}},
      {"training", R"({"steps": 5, "seed": -1})", {"training.seed: must be a whole number >= 0"}},
      {"training",
       R"({"steps": 5, "device": "gpu"})",
       {"training.device: \"gpu\" is not a training device", "\"cuda:0\""}},
      {"training", R"({"steps": 5, "device": "cuda:1x"})", {"training.device: \"cuda:1x\" is not a training device"}},
      {"training",
       R"({"steps": 5, "eval_every": 2})",
       {"training.eval_every: evaluation with no validation data: there is nothing to evaluate on (data at "}},
      {"training", R"({"steps": 5, "sample": {"promt": "a"}})", {"training.sample.promt: unknown key", "\"prompt\""}},
      {"training",
       R"({"steps": 5, "sample": {"temperature": -1}})",
       {"training.sample.temperature: must be a number >= 0"}},
      {"engine",
       R"({"train_batch_size": 8, "parameter_averaging": {"every": 4}})",
       {"training.steps: 10 is not a multiple of 4, engine.parameter_averaging.every at ", "Write 8 or 12."}},
      {"engine",
       R"({"train_batch_size": 8, "zero_optimization": {"stage": 1}, "parameter_averaging": {"every": 5}})",
       {"engine.parameter_averaging: parameter_averaging with ZeRO stage 1", "Use \"stage\": 0, or agree "}},
      {"parallel",
       R"({"context": 2, "sync": {"kind": "local_sgd", "every": 5}})",
       {"parallel.sync: parameter_averaging with 2 context ranks"}},
      {"engine",
       R"({"train_batch_size": 8, "parameter_averaging": {"every": 20}})",
       {"training.steps: 10 is not a multiple of 20", "Write 20."}},
      {"engine", R"({"train_batch_size": 8, "parameter_averaging": {"outer_optimizer": "slowmo"}})", {"every"}},
      {"engine",
       R"({"train_batch_size": 8, "optimizer": {"type": "ZeroOneAdam", "params": {"var_freeze_step": 2, "local_step_scaler": 2, "local_step_clipper": 4}}})",
       {"training.steps: step 10 is between averaging steps, engine.optimizer at",
        "The next averaging step is 12; every 4 steps there."}},
      {"engine", R"({"optimizer": {"type": "AdamW"}})", {"no batch size: neither train_batch_size"}},
      {"engine", R"({"train_batch_size": 8, "sparse_gradients": true})", {"engine.sparse_gradients: not yet: "}},
      {"engine",
       R"({"train_batch_size": 8, "optimiser": {"type": "AdamW"}})",
       {"engine.optimiser: unknown key", "\"optimizer\""}},
      {"enginee", R"({})", {"enginee: unknown key", "\"engine\""}},
  };
  for (const Bad& bad : all) {
    SCOPED_TRACE(bad.text);
    const std::string error = error_of(with(bad.section, bad.text));
    EXPECT_THAT(error, HasSubstr("[config] " + (folder_ / "run.json").string() + ":"));
    for (const char* part : bad.parts) {
      EXPECT_THAT(error, HasSubstr(part));
    }
  }
}

TEST_F(RunFileTest, ImagesNeedTheirLabels) {
  const auto error = [&](const std::string& data, const std::string& more = "") {
    return error_of(R"({"model": {"type": "cnn")" + more + R"(}, "data": )" + data +
                    R"(, "training": {"steps": 1}, "engine": {"train_batch_size": 8, "optimizer": {"type": "SGD"}}})");
  };
  EXPECT_THAT(error(R"({"type": "images", "train": "images"})"),
              HasSubstr("data: the key \"train_labels\" is missing"));
  EXPECT_THAT(error(R"({"type": "images", "train": ["images", "images"], "train_labels": "labels"})"),
              AllOf(HasSubstr("data.train_labels: 1 files of labels for 2 of images, data.train at"),
                    HasSubstr("one for each")));
  EXPECT_THAT(error(R"({"type": "images", "train": "images", "train_labels": "labels", "validation": "images"})"),
              HasSubstr("0 files of labels for 1 of images"));
  EXPECT_THAT(error(R"({"type": "images", "train": "images", "train_labels": "labels"})", R"(, "side": 30)"),
              HasSubstr("model.side: must be a multiple of 4"));
}

TEST_F(RunFileTest, ASampleNeedsATokenizer) {
  const std::string text =
      R"({"model": {"type": "gpt", "vocab_size": 300}, "data": {"type": "tokens", "train": "train.txt"},
    "training": {"steps": 1, "sample": {}}, "engine": {"train_batch_size": 8, "optimizer": {"type": "SGD"}}})";
  EXPECT_THAT(error_of(text), AllOf(HasSubstr("training.sample: a sample with no tokenizer"),
                                    HasSubstr("Write \"tokenizer\" in \"data\"")));
  EXPECT_EQ(read(text, {"data.tokenizer=bytes"}).data.tokenizer, "bytes");
  EXPECT_EQ(read(text, {"training.sample=null"}).training.sample.has_value(), false);
}

TEST_F(RunFileTest, StagesAreSaidInEitherPlace) {
  EXPECT_EQ(read(kMinimal, {"parallel.pipe=2"}).pipeline.stages, 2);
  EXPECT_EQ(read(kMinimal, {"engine.pipeline.stages=2"}).parallel.pipe, 2);
  const RunConfig run =
      read(kMinimal, {"parallel.pipe=2", "parallel.schedule=interleaved", "engine.pipeline.partition=type:block"});
  EXPECT_EQ(run.pipeline.chunks, 2);
  EXPECT_EQ(run.pipeline.partition, "type:block");
  EXPECT_EQ(read(kMinimal, {"parallel.pipe=2", "parallel.chunks=3"}).pipeline.schedule,
            pipeline::ScheduleKind::interleaved);
  EXPECT_THAT(error_of(kMinimal, {"parallel.pipe=2", "engine.pipeline.stages=3"}),
              HasSubstr("pipeline.stages is 3 but parallel.pipe is 2"));
  EXPECT_THAT(error_of(kMinimal, {"parallel.pipe=2", "engine.pipeline.stages=1"}),
              HasSubstr("pipeline.stages is 1 but parallel.pipe is 2"));
}

// The keys of a C++ program's own model, which is split by patterns.
TEST_F(RunFileTest, AModelIsSplitInOnePlace) {
  const auto splits = [](const char* key) {
    return concat(R"(engine.tensor_parallel={")", key,
                  R"(": 2, "partition_config": {"layer_specs": {"patterns": ".*fc1$", "partition_type": "column"}}})");
  };
  EXPECT_THAT(
      error_of(kMinimal, {"parallel.tensor=2", splits("autotp_size")}),
      AllOf(HasSubstr(
                "engine.tensor_parallel.autotp_size: tensor_parallel with a gpt: it splits a C++ program's own model"),
            HasSubstr("a run file's gpt, llama or bert splits its layers itself (model.type at "),
            HasSubstr("Leave engine.tensor_parallel out")));
  EXPECT_THAT(error_of(kMinimal, {"parallel.tensor=4", splits("tp_size")}),
              HasSubstr("engine.tensor_parallel.tp_size: tensor_parallel with a gpt"));
  EXPECT_THAT(error_of(kMinimal, {splits("autotp_size")}),
              AllOf(HasSubstr("tensor_parallel with a gpt"), HasSubstr("set parallel.tensor to the number of ranks")));
  EXPECT_THAT(
      error_of(
          R"({"model": {"type": "cnn"}, "data": {"type": "images", "train": "images", "train_labels": "labels"}, "training": {"steps": 1}, "engine": {"train_batch_size": 8}})",
          {splits("autotp_size")}),
      HasSubstr("tensor_parallel with a cnn: it splits a C++ program's own model (model.type at "));
  EXPECT_EQ(read(kMinimal, {"parallel.tensor=2", "engine.tensor_parallel={\"autotp_size\": 1}"}).parallel.tensor, 2)
      << "as without";
}

// A model in one piece has no layers that could be recomputed or seeded.
TEST_F(RunFileTest, LayersAreBuiltWhereTheyAreAskedFor) {
  EXPECT_FALSE(read(kMinimal).builds_layers());
  EXPECT_TRUE(read(kMinimal, {"parallel.pipe=2"}).builds_layers());
  EXPECT_TRUE(read(kMinimal, {"engine.pipeline.activation_checkpoint_interval=2"}).builds_layers());
  EXPECT_TRUE(read(kMinimal, {"engine.pipeline.seed_layers=true"}).builds_layers());
  EXPECT_EQ(read(kMinimal, {"training.seed=77"}).pipeline.base_seed, 77);
}

TEST_F(RunFileTest, NotesOfTheRunAndOfItsEngine) {
  const RunConfig run =
      read(kMinimal, {"parallel.schedule=gpipe", "engine.vocabulary_size=100", "engine.scheduler.type=WarmupCosineLR",
                      "engine.scheduler.params.total_num_steps=8", "engine.scheduler.params.warmup_num_steps=2"});
  EXPECT_EQ(run.pipeline.schedule, pipeline::ScheduleKind::gpipe);
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("engine.vocabulary_size has no effect"),
                                     AllOf(HasSubstr("the schedule ends at step 8, but the run has 10"),
                                           HasSubstr("training.steps at"))));
}

TEST_F(RunFileTest, AutoIsFilledInFromTheRun) {
  const std::string engine =
      R"({"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}})";
  const RunConfig run = read(with("engine", engine), {"model.hidden=32"});
  EXPECT_EQ(run.engine.schedule.total_num_steps, 10);
  EXPECT_EQ(run.engine.data_parallel.bucket_bytes, 32 * 32 * 4);
  EXPECT_EQ(run.engine.batch_for(3), (BatchTriple{24, 8, 1}));
  EXPECT_FALSE(run.engine.optimizer.has_value()) << "AdamW, as the engine says in its log";
  EXPECT_EQ(run.resolved["engine"]["scheduler"]["params"]["total_num_steps"], "auto")
      << "a resumed run may have more steps";
  EXPECT_EQ(read(with("engine", engine), {"training.steps=70"}).engine.schedule.total_num_steps, 70);
}

TEST_F(RunFileTest, FilesThatCannotBeRead) {
  EXPECT_THROW(read_run_file(folder_ / "missing.json"), InputError);
  EXPECT_THAT(error_of("{\"model\": }"), HasSubstr("run.json:1:11: this is not JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("must be an object, found an array"));
  EXPECT_THAT(error_of("{}"), HasSubstr("the key \"model\" is missing"));
  EXPECT_THAT(error_of("{\"model\": {}, \"model\": {}}"), HasSubstr("appears twice"));
}

} // namespace
} // namespace trireme::config
