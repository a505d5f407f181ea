#include "run_folder_on_disk.h"

#include <tests/support/sanitized.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <chrono>

namespace trireme::tools {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class EstimateCommandTest : public RunFolderOnDisk {
 protected:
  Finished estimate(const std::string& rest, int seconds = 20) const {
    return sh(concat(kTrireme, " estimate ", path("run.json"), ' ', rest), seconds);
  }
  json estimate_json(const std::string& rest) const {
    const Finished finished = estimate(rest + " --json", 100);
    EXPECT_EQ(finished.status, 0) << finished.output;
    return json::parse(finished.output);
  }
};

// Scripts rely on these names.
TEST_F(EstimateCommandTest, SaysTheNumbersAsJson) {
  const json all = estimate_json("-n 2 --set engine.zero_optimization.stage=1");
  EXPECT_EQ(all.at("ranks"), 2);
  EXPECT_EQ(all.at("zero_stage"), 1);
  const int64_t parameters = 50 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32;
  EXPECT_EQ(all.at("parameters"), parameters);
  EXPECT_EQ(estimate_json("-n 2 --set parallel.tensor=2").at("parameters"), parameters)
      << "the model's, not a tensor rank's";
  ASSERT_EQ(all.at("by_stage").size(), 1u);
  const json& stage = all.at("by_stage").at(0);
  EXPECT_EQ(stage.at("ranks"), (json{0, 1}));
  int64_t sum = 0;
  for (const char* category : {"parameters", "gradients", "optimizer_states", "masters", "activations",
                               "communication_buffers", "data", "baseline"}) {
    const json& item = stage.at("memory").at(category);
    EXPECT_TRUE(item.contains("formula")) << category;
    EXPECT_TRUE(item.contains("numbers")) << category;
    sum += item.at("bytes").get<int64_t>();
  }
  EXPECT_EQ(stage.at("memory").at("optimizer_states").at("bytes"), stage.at("memory").at("parameters").at("bytes"))
      << "two states of half the parameters";
  EXPECT_EQ(all.at("peak_bytes"), stage.at("peak_bytes"));
  EXPECT_GE(stage.at("peak_bytes").get<int64_t>(), sum);
  EXPECT_EQ(all.at("textbook").at("model_bytes"), 4 * 2 * 32 * (13 + 12 * 32));
  EXPECT_EQ(all.at("textbook").at("activations_bytes"), 2 * 6 * 16 * 32 * 67 + 2 * 6 * 16 * 9 * 2 * 16);
  EXPECT_TRUE(all.at("fits").get<bool>());
  EXPECT_FALSE(all.contains("measured"));
}

TEST_F(EstimateCommandTest, CountsWhatIsTrained) {
  const int64_t all = 50 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32;
  const int64_t trained = 12 * 32 * 32 + 13 * 32 + 2 * 32;
  const std::string freeze = R"( --set "training.freeze=wte|wpe|h.0")";
  for (const char* const layout : {"-n 2", "-n 2 --set parallel.tensor=2"}) {
    const json some = estimate_json(layout + freeze);
    EXPECT_EQ(some.at("parameters"), all) << layout;
    EXPECT_EQ(some.at("trained_parameters"), trained) << layout;
  }
  EXPECT_EQ(estimate_json("-n 2").at("trained_parameters"), all);
  const Finished table = estimate("-n 2" + freeze);
  EXPECT_THAT(table.output, testing::AllOf(HasSubstr("27.6k parameters, 12.8k trained, 2 ranks"),
                                           HasSubstr("4 (F + Z)"), HasSubstr(" frozen, N 2 ")));
  const Finished nothing = estimate("-n 2 --set training.freeze=wtf");
  EXPECT_EQ(nothing.status, 2);
  EXPECT_THAT(nothing.output,
              testing::AllOf(HasSubstr("--set training.freeze: training.freeze: \"wtf\" matches no parameter"),
                             HasSubstr("nearest names are: transformer.wte.weight")));
}

// A run is estimated before its data is there, if the vocabulary is known. A run that is measured reads the data.
TEST_F(EstimateCommandTest, NeedsNoDataFiles) {
  const std::string text = with(
      R"(data={"type": "text", "train": ["absent.txt"], "validation": ["absent.val"], "tokenizer": "absent.tok"})");
  const json none = estimate_json("-n 2 --set model.vocab_size=300 --set model.init_from=absent.safetensors" + text);
  EXPECT_EQ(none.at("notes").dump().find("absent"), std::string::npos) << none.at("notes");
  EXPECT_EQ(none.at("parameters"), 300 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32);
  const json tokens = estimate_json("-n 2" + with(R"(data={"type": "tokens", "train": ["absent.bin"]})"));
  EXPECT_EQ(tokens.at("notes").dump().find("absent"), std::string::npos)
      << "of mapped files nothing is counted anyway: " << tokens.at("notes");
  const Finished unknown = estimate("-n 2 --set model.vocab_size=null" + text);
  EXPECT_EQ(unknown.status, 2) << unknown.output;
  EXPECT_THAT(unknown.output, testing::AllOf(HasSubstr("there is no file"), HasSubstr("absent.tok (data.tokenizer)"),
                                             HasSubstr("--set model.vocab_size=")));
  const Finished measured = estimate("-n 2 --measure 2 --set model.vocab_size=300" + text);
  EXPECT_NE(measured.status, 0);
  EXPECT_THAT(measured.output, testing::AllOf(HasSubstr("data.train[0]: there is no file"), HasSubstr("absent.txt")));
}

TEST_F(EstimateCommandTest, SaysWhatIsMoved) {
  const std::string files =
      with(concat(R"(engine.zero_optimization.offload_optimizer={"device": "nvme", "nvme_path": ")", path("nvme"),
                  R"(", "pipeline_read": true})"));
  const json all = estimate_json(
      "-n 2 --set engine.zero_optimization.stage=1 --set engine.zero_optimization.reduce_bucket_size=100" + files +
      " --probe");
  EXPECT_EQ(all.at("offload_optimizer"), "nvme");
  EXPECT_EQ(all.at("offload_param"), "none");
  const json& stage = all.at("by_stage").at(0);
  EXPECT_EQ(stage.at("memory").at("optimizer_states").at("bytes"), 0);
  EXPECT_GT(stage.at("memory").at("offload_buffers").at("bytes").get<int64_t>(), 0);
  EXPECT_GT(stage.at("file_bytes").get<int64_t>(), 0);
  EXPECT_EQ(stage.at("from_files_bytes"), stage.at("file_bytes"));
  EXPECT_EQ(stage.at("to_files_bytes"), stage.at("file_bytes"));
  ASSERT_EQ(all.at("disks").size(), 1u);
  const json& disk = all.at("disks").at(0);
  EXPECT_EQ(disk.at("file_bytes"), 2 * stage.at("file_bytes").get<int64_t>()) << "of both ranks";
  EXPECT_EQ(disk.at("read_bytes"), disk.at("file_bytes"));
  EXPECT_GT(disk.at("read_bytes_per_s").get<double>(), 0);
  EXPECT_NEAR(disk.at("write_ms").get<double>(),
              1e3 * disk.at("write_bytes").get<double>() / disk.at("write_bytes_per_s").get<double>(), 1e-6);
  EXPECT_EQ(disk.at("waited_ms"), disk.at("write_ms"))
      << "pipeline_write is off, and nothing but masters and states is written";
  EXPECT_FALSE(std::filesystem::exists(folder / "nvme")) << "looking makes nothing";
  const Finished table = estimate("-n 2" + files + " --probe");
  for (const char* words :
       {"states in files", "offload buffers", "in files of a rank", "moved by a rank in a step",
        "disk: ", "of the disk's time", "a step takes at least ", "because \"pipeline_write\" is off"}) {
    EXPECT_THAT(table.output, HasSubstr(words));
  }
  const Finished nothing = estimate("--probe");
  EXPECT_EQ(nothing.status, 2);
  EXPECT_THAT(nothing.output, HasSubstr("nothing is in files"));
  const json on_card = estimate_json("--set training.device=cuda --set engine.zero_optimization.stage=2" +
                                     with(R"(engine.zero_optimization.offload_optimizer={"device": "cpu"})"));
  EXPECT_EQ(on_card.at("by_stage").at(0).at("memory").at("gradients").at("bytes"), 0);
  EXPECT_GT(on_card.at("by_stage").at(0).at("host_bytes").get<int64_t>(), 0);
  EXPECT_GT(on_card.at("by_stage").at(0).at("to_host_bytes").get<int64_t>(), 0);
}

TEST_F(EstimateCommandTest, ShowsATable) {
  const Finished shown = estimate("-n 4 --set parallel.pipe=2 --set engine.gradient_accumulation_steps=3");
  EXPECT_EQ(shown.status, 0) << shown.output;
  for (const char* words :
       {"2 stages x 2 data-parallel", "stage 1", "optimizer states", "4nh(13+12h)", "activations, send", "peak"}) {
    EXPECT_THAT(shown.output, HasSubstr(words));
  }
}

TEST_F(EstimateCommandTest, MeasuresBesideTheEstimate) {
  for (const char* options :
       {"-n 2 --measure 3",
        "-n 2 --measure 3 --set engine.zero_optimization.stage=2 --set engine.gradient_accumulation_steps=2",
        "-n 2 --measure 3 --set parallel.pipe=2 --set engine.gradient_accumulation_steps=2",
        "-n 2 --measure 3 --set engine.zero_optimization.stage=3 --set training.freeze=h.0",
        R"(-n 2 --measure 3 --set "training.lora={\"rank\": 4}")"}) {
    const json all = estimate_json(options);
    const json& measured = all.at("measured");
    EXPECT_EQ(measured.at("steps"), 3);
    EXPECT_EQ(measured.at("comm_bytes"), all.at("by_stage").at(0).at("comm_bytes")) << options;
    EXPECT_EQ(measured.at("comm_deviation_percent"), 0.0) << options;
    if (!test::kSanitized) {
      EXPECT_LT(std::abs(measured.at("peak_deviation_percent").get<double>()), 30) << measured.dump();
    }
  }
}

TEST_F(EstimateCommandTest, RefusesWhatTrainingWouldRefuse) {
  const auto refused = [&](const Finished& finished, const std::string& words) {
    EXPECT_EQ(finished.status, 2) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr(words));
  };
  refused(estimate("-n 3 --set parallel.pipe=2"), "3 ranks cannot be divided among 2 pipeline stages");
  const std::string three = "-n 4 --set model.hidden=48 --set model.heads=3 --set parallel.tensor=3";
  for (const Finished& finished : {estimate(three), train(three, 20)}) {
    refused(finished, "-n 4 ranks cannot be divided among 3 ranks of a replica (pipe * context * tensor = 1 * 1 * 3)");
    EXPECT_THAT(finished.output, HasSubstr("Use -n 3, 6 or another multiple, or choose parallel.pipe, context and "
                                           "tensor so that their product divides 4."));
  }
  refused(estimate("-n 6 --set parallel.context=2 --set parallel.tensor=2"),
          "-n 6 ranks cannot be divided among 4 ranks of a replica (pipe * context * tensor = 1 * 2 * 2)");
  for (const char* optimizer : {"Lamb", "OneBitLamb"}) {
    const std::string split = concat("-n 2 --set parallel.tensor=2 --set engine.optimizer.type=", optimizer);
    for (const Finished& finished : {estimate(split), train(split, 20)}) {
      refused(finished, "LAMB with 2 tensor ranks: it needs the norm of each whole parameter");
    }
  }
  refused(estimate("-n 5"), "12");
  refused(estimate("-n 0"), "--ranks");
  refused(estimate("--measure 1"), "--measure");
  refused(estimate("--set model.layerz=3"), "layers");
  refused(sh(kTrireme + " estimate " + path("absent.json")), "absent.json");
}

// Once, by the rank that writes.
TEST_F(EstimateCommandTest, NotesOfTheRunFileAreSaidAsInTraining) {
  const std::string set =
      "-n 2 --set parallel.sequence_parallel=true --set engine.activation_checkpointing.number_checkpoints=2";
  const std::string table = estimate(set).output;
  const std::string notes = estimate_json(set).at("notes").dump();
  const std::string said = train(set).output;
  for (const char* note : {"parallel.sequence_parallel has no effect: there is one tensor rank (parallel.tensor)",
                           "number_checkpoints has no effect"}) {
    EXPECT_THAT(table, HasSubstr(note));
    EXPECT_THAT(notes, HasSubstr(note));
    EXPECT_NE(said.find(note), std::string::npos) << note << said;
    EXPECT_EQ(said.find(note), said.rfind(note)) << note << said;
  }
}

// Before a rank starts, with what would fit.
TEST_F(EstimateCommandTest, ARunThatCannotFitIsRefused) {
  const auto start = std::chrono::steady_clock::now();
  const Finished huge = train("-n 2 --set model.layers=100 --set model.hidden=20000 --set model.heads=100", 20);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 1.0);
  EXPECT_EQ(huge.status, 2) << huge.output;
  EXPECT_THAT(huge.output, HasSubstr("this run cannot fit: model states and activations of 2 ranks need"));
  EXPECT_THAT(huge.output, HasSubstr("None of the changes tried fits"));
  EXPECT_THAT(huge.output, HasSubstr("--no-memory-check"));
}

// What the host has says nothing about a GPU: the ranks find out. A layer of a list moves there as soon as it is built.
TEST_F(EstimateCommandTest, ARunOnAGpuIsNotComparedWithTheHost) {
  const std::string huge =
      "-n 2 --set model.layers=100 --set model.hidden=20000 --set model.heads=100 --set "
      "engine.pipeline.activation_checkpoint_interval=1";
  for (const Finished& started :
       {train(huge + " --set training.device=cuda:127", 60),
        sh(concat("TRIREME_DEVICE=cuda:127 ", kTrireme, " train ", path("run.json"), " --out ", path("out"), " ", huge),
           60)}) {
    EXPECT_THAT(started.output, HasSubstr("\"cuda:127\" is not available"));
    EXPECT_THAT(started.output, testing::Not(HasSubstr("cannot fit")));
  }
}

// Of a GPU's run the host has to have room for what is moved there, and for a model in one piece, which each rank
// builds there.
TEST_F(EstimateCommandTest, ARunOnAGpuThatItsHostCannotHoldIsRefused) {
  const std::string model = "-n 2 --set model.layers=100 --set model.hidden=20000 --set model.heads=100";
  const std::string listed = model + " --set engine.pipeline.activation_checkpoint_interval=1";
  const std::string states = with(R"(engine.zero_optimization.offload_optimizer={"device": "cpu"})");
  for (const auto& [run, what] :
       {std::pair(model, "models in one piece, built on the host in fp32, of 2 ranks need"),
        std::pair(listed + states, "states, parameters and activations on the host of 2 ranks need")}) {
    for (const Finished& refused :
         {train(run + " --set training.device=cuda", 20),
          sh(concat("TRIREME_DEVICE=cuda ", kTrireme, " train ", path("run.json"), " --out ", path("out"), " ", run),
             20)}) {
      EXPECT_EQ(refused.status, 2) << refused.output;
      EXPECT_THAT(refused.output, HasSubstr(concat("this run cannot fit: ", what)));
      EXPECT_THAT(refused.output, testing::Not(HasSubstr("is not available: libtorch"))) << "before a rank starts";
    }
  }
}

// 45 million parameters, whose states and gradients are 720 MB on a GPU's host; in files they are a quarter.
TEST_F(EstimateCommandTest, AHostThatIsTooSmallForStatesIsToldOfFiles) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs address space of its own";
  }
  const std::string run =
      " --set training.device=cuda --set engine.pipeline.activation_checkpoint_interval=1 --set model.layers=14 --set "
      "model.hidden=512 --set model.heads=8" +
      with(R"(engine.zero_optimization.offload_optimizer={"device": "cpu"})");
  const Finished refused = sh(concat("cd ", folder.string(), " && stat -f -c %T . && ulimit -v 1284000; ", kTrireme,
                                     " train run.json -n 1 --out out", run),
                              60);
  if (refused.output.starts_with("tmpfs")) {
    GTEST_SKIP() << "files in memory are no help";
  }
  EXPECT_EQ(refused.status, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("states, parameters and activations on the host of a rank need"));
  EXPECT_THAT(refused.output,
              HasSubstr(R"('engine.zero_optimization.offload_optimizer={"device": "nvme", "nvme_path": ".")"));
}

// 45 million parameters: 16 bytes of each are more than the limit, whatever the types and batches. What is named fits
// by the estimate.
TEST_F(EstimateCommandTest, ARunThatFitsOnlyWithFilesIsToldSo) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs address space of its own";
  }
  const std::string model = " --set model.layers=14 --set model.hidden=512 --set model.heads=8";
  const Finished refused = sh(concat("cd ", folder.string(), " && stat -f -c %T . && ulimit -v 1284000; ", kTrireme,
                                     " train run.json -n 1 --out out", model),
                              60);
  if (refused.output.starts_with("tmpfs")) {
    GTEST_SKIP() << "files in memory are no help";
  }
  EXPECT_EQ(refused.status, 2) << refused.output;
  const size_t begin = refused.output.find("Fits with about");
  ASSERT_NE(begin, std::string::npos) << refused.output;
  const size_t colon = refused.output.find(": ", begin) + 2;
  const std::string arguments = refused.output.substr(colon, refused.output.find(". `trireme estimate", begin) - colon);
  EXPECT_THAT(arguments,
              HasSubstr(R"('engine.zero_optimization.offload_optimizer={"device": "nvme", "nvme_path": ".")"));
  write_file_atomically(folder / "fitting.sh",
                        concat(kTrireme, " estimate run.json -n 1 --json", model, ' ', arguments));
  const json fitting = json::parse(sh(concat("cd ", folder.string(), " && sh fitting.sh"), 60).output);
  EXPECT_LE(fitting.at("peak_bytes").get<int64_t>(), 1'284'000 * 1024 - 700'000'000)
      << arguments << ": libraries and stacks take the rest";
  EXPECT_GT(fitting.at("by_stage").at(0).at("file_bytes").get<int64_t>(), 400'000'000);
}

TEST_F(EstimateCommandTest, FilesThatDoNotFitAreRefusedBeforeRanksStart) {
  const std::filesystem::path small = folder / "small";
  std::filesystem::create_directories(small);
  if (::geteuid() != 0 || sh(concat("mount -t tmpfs -o size=4m tmpfs ", small.string())).status != 0) {
    GTEST_SKIP() << "needs root to mount a small file system";
  }
  const Finished refused =
      train("-n 2 --set model.layers=8 --set model.hidden=128" +
                with(concat(R"(engine.zero_optimization.offload_optimizer={"device": "nvme", "nvme_path": ")",
                            (small / "states").string(), R"("})")),
            60);
  sh(concat("umount -l ", small.string()));
  EXPECT_EQ(refused.status, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("files of 2 ranks need 25"));
  EXPECT_THAT(refused.output, HasSubstr("small/states, which has 4.19 MB free"));
  EXPECT_THAT(refused.output, HasSubstr("Fits without files, with \"device\": \"cpu\""));
  EXPECT_THAT(refused.output, testing::Not(HasSubstr("step 1")));
}

// 9 million parameters: 147 MB of states on one rank, and a limit between that of stage 0 and that of stage 3.
TEST_F(EstimateCommandTest, UnderALimitOfTheProcess) {
  if (test::kSanitized) {
    GTEST_SKIP() << "a sanitizer needs address space of its own";
  }
  const std::string limited = concat("ulimit -v 120000; ", kTrireme, " train ", path("run.json"), " --out ",
                                     path("out"), " --set model.layers=3 --set model.hidden=512 --set model.heads=8");
  const Finished refused = sh(limited + " -n 2", 20);
  EXPECT_EQ(refused.status, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("(ulimit -v)"));
  const Finished started = sh(limited + " -n 1 --no-memory-check", 60);
  EXPECT_NE(started.status, 2) << started.output;
  EXPECT_THAT(started.output, testing::Not(HasSubstr("cannot fit")));
}

} // namespace
} // namespace trireme::tools
