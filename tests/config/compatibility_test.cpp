// The table of what goes together: each pair is refused in a run file at its line and column, or of a program, and each
// feature alone is accepted.
#include <tests/support/folders.h>
#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/base/json.h>
#include <trireme/base/text.h>
#include <trireme/config/compatibility.h>
#include <trireme/config/run_file.h>
#include <trireme/config/run_types.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <functional>
#include <map>

namespace trireme::config {
namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;

const std::string kPage = test::source_dir() + "/docs/compatibility.md";

constexpr const char* kGpt = R"({
  "model": {"type": "gpt", "layers": 4, "hidden": 64, "heads": 4},
  "data": {"type": "text", "train": "train.txt"},
  "training": {"steps": 10},
  "engine": {"train_batch_size": 8, "gradient_clipping": 0, "optimizer": {"type": "AdamW"}}
})";
constexpr const char* kCnn =
    R"({"model": {"type": "cnn", "layers": null, "hidden": null, "heads": null},
        "data": {"type": "images", "train": "images", "train_labels": "labels"}})";
constexpr const char* kAlexNet =
    R"({"model": {"type": "alexnet", "layers": null, "hidden": 64, "heads": null},
        "data": {"type": "images", "train": "images", "train_labels": "labels"}})";
constexpr const char* kBert = R"({"model": {"type": "bert"}})";
constexpr const char* kClasses =
    R"({"model": {"type": "bert", "head": "classes"}, "data": {"type": "labelled_text", "train": "train.jsonl"}})";
constexpr const char* kOwn = R"({"model": {"type": "own", "layers": null, "hidden": null, "heads": null}})";
constexpr const char* kGpu = R"({"training": {"device": "cuda:0"}})";

// What asks for a feature: changes of a run file, and of a program's options.
struct Example {
  std::vector<std::string> patches = {};
  std::function<void(Setting&)> program = nullptr;
};

Example engine(const std::string& key, const std::string& value) {
  return {{concat(R"({"engine": {")", key, R"(": )", value, "}}")}};
}

Example zero(const std::string& value) {
  return engine("zero_optimization", value);
}

Example on_gpu(Example example) {
  example.patches.emplace_back(kGpu);
  return example;
}

Example optimizer(const std::string& type, const std::string& params = "{}") {
  return engine("optimizer", concat(R"({"type": ")", type, R"(", "params": )", params, "}"));
}

Example program(void (*change)(ProgramOptions&)) {
  return {{}, [change](Setting& setting) { change(*setting.program); }};
}

const std::string kServerSync = R"({"parallel": {"sync": {"kind": "server"}}})";
const std::string kStates = R"({"offload_optimizer": {"device": "cpu"}})";
const std::string kSplit =
    R"({"autotp_size": 2, "partition_config": {"layer_specs": {"patterns": ".*fc1$", "partition_type": "column"}}})";

const std::map<std::string, Example, std::less<>> kExamples = {
    {"parameter_averaging", engine("parameter_averaging", R"({"every": 5})")},
    {"elastic parameter_averaging",
     {{R"({"parallel": {"sync": {"kind": "local_sgd", "every": 5, "elastic": true}}})"}}},
    {"parameter servers", {{kServerSync}}},
    {"sparse_rows", {{R"({"parallel": {"sync": {"kind": "server", "sparse_rows": ["transformer.wte"]}}})"}}},
    {"OneBitAdam", optimizer("OneBitAdam")},
    {"OneBitLamb", optimizer("OneBitLamb")},
    {"ZeroOneAdam", optimizer("ZeroOneAdam", R"({"local_step_clipper": 1})")},
    {"ZeroOneAdam with local_step_clipper above 1", optimizer("ZeroOneAdam", R"({"local_step_clipper": 16})")},
    {"gradient_compression", engine("gradient_compression", R"({"kind": "sign"})")},
    {"InitializeOptions::sync of its own", program([](ProgramOptions& p) { p.own_sync = true; })},
    {"a program without replica_sync()", program([](ProgramOptions& p) { p.replica = false; })},
    {"a program without worker_sync()", program([](ProgramOptions& p) { p.server_worker = false; })},
    {"gradient_allreduce_algorithm", engine("gradient_allreduce_algorithm", R"("ring")")},
    {"gradient_allreduce_op, prescale_gradients or gradient_predivide_factor",
     engine("gradient_allreduce_op", R"("sum")")},
    {"communication_data_type", engine("communication_data_type", R"("bf16")")},
    {"sync_batch_norm", engine("sync_batch_norm", "true")},
    {"a GPU", {{kGpu}}},
    {"ZeRO stage 1 to 3", zero(R"({"stage": 1})")},
    {"ZeRO stage 2 or 3", zero(R"({"stage": 3})")},
    {"ZeRO stage 0 to 2", zero(R"({"stage": 2})")},
    {"zero_optimization.mics_shard_size", zero(R"({"stage": 1, "mics_shard_size": 2})")},
    {"offload_param", zero(R"({"stage": 3, "offload_param": {"device": "cpu"}})")},
    {"offload_optimizer", zero(kStates)},
    {"offload_optimizer on a GPU", on_gpu(zero(kStates))},
    {"optimizer states on the GPU",
     {{kGpu},
      [](Setting& s) { const_cast<EngineConfig&>(s.engine).offload.optimizer.place = offload::Place::device; }}},
    {"offload_param on a GPU", on_gpu(zero(R"({"stage": 3, "offload_param": {"device": "cpu"}})"))},
    {"delayed_update", zero(R"({"offload_optimizer": {"device": "cpu", "delayed_update": true}})")},
    {"delayed_update on a GPU", on_gpu(zero(R"({"offload_optimizer": {"device": "cpu", "delayed_update": true}})"))},
    {"an offload_optimizer.ratio below 1 on a GPU",
     on_gpu(zero(R"({"offload_optimizer": {"device": "cpu", "ratio": 0.5}})"))},
    {"InitializeOptions::state_store", program([](ProgramOptions& p) { p.state_store = true; })},
    {"LAMB", optimizer("Lamb")},
    {"moments in bf16 or int8", engine("bf16", R"({"enabled": true, "bf16_optimizer_states": true})")},
    {"8-bit optimizer states", optimizer("AdamW", R"({"state_dtype": "int8"})")},
    {"step_in_backward", engine("step_in_backward", "true")},
    {"gradient_clipping", engine("gradient_clipping", "1")},
    {"the look for NaN in fp16 and bf16 gradients (bf16.check_grad_overflow)",
     engine("bf16", R"({"enabled": true, "check_grad_overflow": true})")},
    {"fp8", {{R"({"engine": {"bf16": {"enabled": true}, "fp8": {"enabled": true}}})"}}},
    {"products in fp32 or fp16", engine("bf16", R"({"enabled": false})")},
    {"fp16", engine("fp16", R"({"enabled": true})")},
    {"scheduler", engine("scheduler", R"({"type": "WarmupLR", "params": {}})")},
    {"optimizer", {}},
    {"InitializeOptions::optimizer", program([](ProgramOptions& p) { p.optimizer = true; })},
    {"InitializeOptions::parameter_groups", program([](ProgramOptions& p) { p.parameter_groups = true; })},
    {"InitializeOptions::lr", program([](ProgramOptions& p) { p.lr = true; })},
    {"context ranks", {{R"({"parallel": {"context": 2}})"}}},
    {"ring attention over context ranks", {{R"({"parallel": {"context": 2}})"}}},
    {"a window shorter than the samples", {{R"({"model": {"type": "llama", "window": 4}})"}}},
    {"sequence_parallel", {{R"({"parallel": {"tensor": 2, "sequence_parallel": true}})"}}},
    {"tensor ranks", {{R"({"parallel": {"tensor": 2}})"}}},
    {"layers split among tensor ranks", {{R"({"parallel": {"tensor": 2}})"}}},
    {"pipeline stages", {{R"({"parallel": {"pipe": 2}})"}}},
    {"replicas of several ranks", {{R"({"parallel": {"pipe": 2}})"}}},
    {"InitializeOptions::reduce_groups or placement", program([](ProgramOptions& p) { p.placement = true; })},
    {"engine.tensor_parallel", {{}, [](Setting& s) { const_cast<EngineConfig&>(s.engine).tensor_parallel.size = 2; }}},
    {"a PipelineModule", program([](ProgramOptions& p) { p.pipeline = true; })},
    {"InitializeOptions::sequence_parallel", {{}, [](Setting& setting) { setting.sequence_parallel = true; }}},
    {"a model in one piece", program([](ProgramOptions& p) { p.pipeline = false; })},
    {"pipeline.stages, activation_checkpoint_interval or seed_layers", engine("pipeline", R"({"seed_layers": true})")},
    {"a run file's gpt or llama", {}},
    {"a run file's bert", {{kBert}}},
    {"a run file's bert with the head masked_lm", {{kBert}}},
    {"a run file's bert with the head classes", {{kClasses}}},
    {"a run file's cnn", {{kCnn}}},
    {"a run file's alexnet", {{kAlexNet}}},
    {"data of type images", {{R"({"data": {"type": "images", "train": "images", "train_labels": "labels"}})"}}},
    {"data of type labelled_text",
     {{R"({"data": {"type": "labelled_text", "train": "train.jsonl", "train_labels": null}})"}}},
    {"CUDA graphs of steps", {{R"({"training": {"cuda_graph": true}})"}}},
    {"packed documents", {{R"({"data": {"type": "tokens", "tokenizer": "bytes", "pack": true}})"}}},
    {"loss_on \"response\"",
     {{R"({"data": {"type": "jsonl", "train": "train.jsonl", "train_labels": null, "loss_on": "response"}})"}}},
    {"data of type tokens, text, jsonl or mixture",
     {{R"({"data": {"type": "text", "train": "train.txt", "train_labels": null}})"}}},
    {"seed_layers or activation_checkpoint_interval", engine("pipeline", R"({"seed_layers": true})")},
    {"training.sample", {{R"({"training": {"sample": {"prompt": "a"}}})"}}},
    {"training.export", {{R"({"training": {"export": "folder"}})"}}},
    {"training.freeze", {{R"({"training": {"freeze": "wte"}})"}}},
    {"training.lora", {{R"({"training": {"lora": {"rank": 2}}})"}}},
    {"model.adapter", {{R"({"model": {"adapter": "adapter"}})"}}},
    {"no data.tokenizer", {{R"({"model": {"vocab_size": 300}, "data": {"type": "tokens"}})"}}},
    {"training.eval_every", {{R"({"training": {"eval_every": 5}})"}}},
    {"no validation data", {}},
    {"data.validation_fraction", {{R"({"data": {"validation_fraction": 0.1}})"}}},
    {"data.validation", {{R"({"data": {"validation": "validation.txt"}})"}}},
    {"a model type of a program", {{kOwn}}},
    {"a model type of a program that gives no layers", {{kOwn}}},
    {"a model type of a program without ModelType::tensor", {{kOwn}}},
    {"a model type of a program without ModelType::context", {{kOwn}}},
};

// With a model type "own" of a program, which can do nothing.
const RunTypes& types() {
  static const RunTypes all = [] {
    RunTypes out = built_in_types();
    out.models.push_back({.name = "own",
                          .read = [](const JsonNode&, const RunPaths&,
                                     RunConfig& run) { run.model.kind = ModelConfig::Kind::of_program; },
                          .write = [](const RunConfig&) { return ordered_json{{"type", "own"}}; },
                          .of_program = true});
    return out;
  }();
  return all;
}

RunConfig read_patched(const std::vector<std::string>& patches) {
  ordered_json run = ordered_json::parse(kGpt);
  for (const std::string& patch : patches) {
    run.merge_patch(ordered_json::parse(patch));
  }
  return read_run(JsonNode::parse(run.dump(2), "run.json"), "/", {}, types());
}

std::string error_of(const std::vector<std::string>& patches) {
  try {
    read_patched(patches);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

const Example& example_of(const Feature& feature) {
  const auto found = kExamples.find(feature.name);
  EXPECT_NE(found, kExamples.end()) << "no example of " << feature.name;
  static const Example none;
  return found == kExamples.end() ? none : found->second;
}

// A program of the run's engine, with all that it has to say.
Setting of_program(const RunConfig& run) {
  Setting setting = setting_of(run);
  setting.run = nullptr;
  setting.program = ProgramOptions{.pipeline = run.builds_layers(), .server_worker = true, .replica = true};
  return setting;
}

class CompatibilityTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (std::getenv("TRIREME_WRITE_DOCS") != nullptr) {
      write_file_atomically(kPage, compatibility_page());
    }
  }
};

TEST_F(CompatibilityTest, ThePageOnDiskIsTheTable) {
  EXPECT_EQ(read_file(kPage), compatibility_page())
      << "TRIREME_WRITE_DOCS=1 build/release/tests/config/config_test writes it";
}

TEST_F(CompatibilityTest, EachPairIsRefused) {
  int of_files = 0;
  int of_programs = 0;
  for (const Incompatible& row : incompatible_features()) {
    for (const Feature& feature : row.these) {
      for (const Feature& with : row.those) {
        SCOPED_TRACE(concat(feature.name, " with ", with.name));
        const Example& one = example_of(feature);
        const Example& other = example_of(with);
        std::vector<std::string> patches = one.patches;
        patches.insert(patches.end(), other.patches.begin(), other.patches.end());
        if (!one.program && !other.program) {
          ++of_files;
          const std::string error = error_of(patches);
          EXPECT_THAT(error, AllOf(HasSubstr("[config] run.json:"), HasSubstr(std::string(row.why)),
                                   HasSubstr(std::string(row.instead))));
          continue;
        }
        ++of_programs;
        RunConfig run = read_patched(patches);
        if (one.patches.empty() && feature.name != "optimizer" && with.name != "optimizer") {
          run.engine.optimizer.reset();
        }
        Setting setting = of_program(run);
        for (const Example* example : {&one, &other}) {
          if (example->program) {
            example->program(setting);
          }
        }
        const bool of_file = feature.name.starts_with("a run file") || with.name.starts_with("a run file") ||
                             with.name.starts_with("a model type of a program");
        if (of_file) {
          setting.run = &run;
        }
        const std::optional<Conflict> conflict = find_conflict(setting);
        ASSERT_TRUE(conflict);
        EXPECT_EQ(conflict->feature.name, feature.name);
        EXPECT_EQ(conflict->with.name, with.name);
        EXPECT_THAT(conflict->what, HasSubstr(std::string(row.why)));
      }
    }
  }
  EXPECT_GT(of_files, 80);
  EXPECT_GT(of_programs, 20);
}

TEST_F(CompatibilityTest, EachFeatureAloneIsAccepted) {
  for (const auto& [name, example] : kExamples) {
    SCOPED_TRACE(name);
    if (name == "data of type images" || name == "data of type labelled_text" || name == "training.eval_every" ||
        name == "model.adapter") { // wants a cnn or bert, validation data, a folder
      continue;
    }
    EXPECT_EQ(error_of(example.patches), "");
  }
}

TEST_F(CompatibilityTest, BothPlacesAreNamed) {
  EXPECT_THAT(error_of({R"({"engine": {"zero_optimization": {"stage": 1}, "parameter_averaging": {"every": 5}}})"}),
              AllOf(HasSubstr("engine.parameter_averaging: parameter_averaging with ZeRO stage 1: ZeRO shards"),
                    HasSubstr("(engine.zero_optimization.stage at run.json:")));
}

} // namespace
} // namespace trireme::config
