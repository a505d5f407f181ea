#include "shell.h"

#include <tests/support/folders.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class BadInputTest : public RunFolder {
 protected:
  // Status 2 and one clear sentence, said once, from whichever rank.
  void expect_refused(const Finished& run, const std::string& words, int status = 2) {
    EXPECT_EQ(run.status, status) << run.output;
    EXPECT_THAT(run.output, HasSubstr(words));
    EXPECT_EQ(run.output.find("terminate called"), std::string::npos) << run.output;
    EXPECT_EQ(run.output.find("frame #"), std::string::npos) << "no stack traces:\n" << run.output;
    size_t count = 0;
    for (size_t at = run.output.find(words); at != std::string::npos; at = run.output.find(words, at + 1)) {
      ++count;
    }
    EXPECT_EQ(count, 1u) << run.output;
  }
};

TEST_F(BadInputTest, ARunFileThatIsMissingOrNotJson) {
  expect_refused(sh(kTrireme + " train " + path("absent.json")), "absent.json does not exist");
  write_file_atomically(folder / "broken.json", "{\"model\": {\"type\": \"gpt\",}}");
  expect_refused(sh(kTrireme + " train " + path("broken.json")), "broken.json:1:");
}

TEST_F(BadInputTest, AnUnknownKey) {
  expect_refused(train("-n 2 --set engine.gradient_clipp1ng=1"), "Did you mean \"gradient_clipping\"?");
  expect_refused(train("-n 2 --set engine.sparse_attention.mode=fixed"), "not yet");
  expect_refused(train("-n 2 --set engine.zero_optimization.offload_optimizer.device=nvme"), "files need a folder");
  expect_refused(train("-n 2 --set engine.zero_optimization.stage=4"), "from 0 to 3");
  expect_refused(train("-n 2 --set engine.fp16.enabled=true --set engine.bf16.enabled=true"), "Enable one of the two");
}

TEST_F(BadInputTest, BatchSizesThatDoNotFitTheRanks) {
  expect_refused(train("-n 5"), "the batch sizes do not fit 5 data ranks");
}

TEST_F(BadInputTest, ZeroRanks) {
  expect_refused(train("-n 0"), "expected a number >= 1, got \"0\"");
}

TEST_F(BadInputTest, AMissingDataFile) {
  write_run("run.json",
            R"({"type": "gpt", "layers": 1, "hidden": 32, "heads": 2, "sequence_length": 16, "vocab_size": 50})",
            "absent.bin");
  expect_refused(train("-n 2"), "there is no file");
}

TEST_F(BadInputTest, ATokenAboveTheVocabulary) {
  std::vector<uint16_t> tokens(6000, 7);
  tokens[1234] = 50;
  write_tokens("tokens.bin", tokens);
  const Finished run =
      train("-n 2 --set training.steps=5 --set data.shuffle=false"); // it would be read in a later step
  expect_refused(run, "token 1234 is 50");
  EXPECT_THAT(run.output, Not(HasSubstr("step 1/5")));
}

TEST_F(BadInputTest, TokensOf32Bits) {
  std::vector<uint16_t> tokens;
  for (uint16_t i = 0; i < 6000; ++i) {
    tokens.insert(tokens.end(), {static_cast<uint16_t>(i * 7 % 50), 0});
  }
  write_tokens("tokens.bin", tokens);
  expect_refused(train("-n 2"), "these are probably 32-bit tokens");
  expect_refused(train("-n 2 --set model.vocab_size=65537 --set data.token_bytes=3"), "tokens have 2 or 4 bytes");
  EXPECT_EQ(train("-n 1 --set training.steps=1 --set data.token_bytes=4").status, 0);
}

TEST_F(BadInputTest, ATokenAboveTheVocabularyInTheValidationIsFoundBeforeTheFirstStep) {
  write_tokens("other.bin", std::vector<uint16_t>(600, 50));
  const Finished run =
      train("-n 2 --set training.steps=5 --set training.checkpoint_every=0 --set data.validation=[\\\"" +
            path("other.bin") + "\\\"]");
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.output, HasSubstr("the vocabulary has 50"));
  EXPECT_THAT(run.output, Not(HasSubstr("step 1/5")));
}

TEST_F(BadInputTest, WeightsThatAreTruncatedOrCorrupt) {
  ASSERT_EQ(train("-n 1 --set training.steps=5").status, 0);
  const fs::path checkpoint = folder / "out/checkpoints/global_step5";
  const std::string weights = read_file(checkpoint / "rank00000.safetensors");
  write_file_atomically(folder / "short.safetensors", weights.substr(0, weights.size() / 2));
  write_file_atomically(folder / "noise.safetensors", std::string(1000, '\x7f'));
  for (const char* file : {"short.safetensors", "noise.safetensors"}) {
    const Finished run = sh(concat(kTrireme, " train ", path("run.json"), " -n 1 --out ", path("other"),
                                   " --set model.init_from=", path(file)));
    expect_refused(run, file);
    fs::remove_all(folder / "other");
    expect_refused(sh(concat(kTrireme, " inspect ", path(file))), file);
  }
  // A damaged checkpoint is named and not loaded; there is no other.
  std::string damaged = weights;
  damaged[damaged.size() - 100] ^= 1;
  write_file_atomically(checkpoint / "rank00000.safetensors", damaged);
  const Finished resumed = train("-n 1 --resume");
  EXPECT_EQ(resumed.status, 2) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("rank00000.safetensors"));
}

TEST_F(BadInputTest, ACheckpointThatIsNotThere) {
  expect_refused(
      sh(concat(kTrireme, " train ", path("run.json"), " --resume ", path("absent"), " --out ", path("new"))),
      "absent: there is no such file or folder");
  EXPECT_FALSE(fs::exists(path("new"))) << "nothing is left behind";
}

TEST_F(BadInputTest, AnotherModelAtResume) {
  ASSERT_EQ(train("-n 2 --set training.steps=5").status, 0);
  expect_refused(train("-n 2 --resume --set model.layers=1"),
                 "is of another model: this one has no \"transformer.h.1.");
  expect_refused(train("-n 2 --resume --set model.layers=3"), "is of another model: it has no \"transformer.h.2.");
  expect_refused(train("-n 2 --resume --set model.layers=1 --set parallel.pipe=2"),
                 "is of another model: this one has no \"transformer.h.1.");
  expect_refused(train("-n 2 --resume --set model.layers=3 --set parallel.pipe=2"),
                 "is of another model: it has no \"transformer.h.2.");
  EXPECT_EQ(train("-n 2 --resume --set training.steps=6 --set parallel.pipe=2").status, 0);
}

TEST_F(BadInputTest, TwoTrainingsInOneFolder) {
  fs::create_directories(folder / "out/logs");
  expect_refused(
      sh(concat("flock ", path("out/logs/lock"), " ", kTrireme, " train ", path("run.json"), " --out ", path("out"))),
      "another training writes into");
  EXPECT_EQ(train("--set training.steps=1").status, 0) << "the one that ended has let go";
}

TEST_F(BadInputTest, AnUnknownLogLevel) {
  const Finished run = sh(concat("TRIREME_LOG=loud ", kTrireme, " train ", path("run.json"), " --out ", path("out"),
                                 " --set training.steps=1"));
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("TRIREME_LOG: [log] unknown log level \"loud\". Known: debug"));
}

TEST_F(BadInputTest, APathThatTheSystemRefuses) {
  const std::string name(300, 'x');
  expect_refused(sh(concat(kTrireme, " train ", path("run.json"), " --resume --out ", name, "/out")),
                 ": File name too long. Name another folder");
  expect_refused(sh(kTrireme + " generate " + name + " --prompt a"),
                 ": File name too long. Check the path and its permissions.");
}

TEST_F(BadInputTest, OutputThatCannotBeWritten) {
  ASSERT_EQ(train("--set training.steps=1").status, 0);
  for (const std::string& command :
       {std::string("--version"), std::string("schedule --kind 1f1b --stages 2 --micro-batches 2"),
        "inspect " + path("out/checkpoints")}) {
    const Finished run = sh(concat(kTrireme, ' ', command, " > /dev/full"));
    EXPECT_EQ(run.status, 1) << command;
    EXPECT_THAT(run.output, HasSubstr("the output could not be written: No space left on device")) << command;
  }
}

TEST_F(BadInputTest, WhatOnlyALauncherCanDoUnderAnotherLauncher) {
  const std::string train = concat(kTrireme, " train ", path("run.json"), " --out ", path("out"), ' ');
  for (const char* variables :
       {"OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=1", "PMI_SIZE=3 PMI_RANK=0", "WORLD_SIZE=3 RANK=2",
        "SLURM_NTASKS=3 SLURM_PROCID=0 SLURM_STEP_ID=0", "PET_NNODES=3 PET_NODE_RANK=0"}) {
    Finished run = sh(concat(variables, ' ', train, "-n 2"));
    EXPECT_EQ(run.status, 2) << variables;
    EXPECT_THAT(run.output, AllOf(HasSubstr("-n asks for 2 ranks, but "), HasSubstr(" has started 3"))) << variables;
    run = sh(concat(variables, ' ', train, "--max-restarts 2"));
    EXPECT_EQ(run.status, 2) << variables;
    EXPECT_THAT(run.output, HasSubstr("--max-restarts is for ranks that trireme starts")) << variables;
    EXPECT_FALSE(fs::exists(path("out"))) << variables;
  }
  expect_refused(sh("PET_NNODES=1:3 PET_NODE_RANK=0 " + train),
                 "Type: torchrun --no-python trireme train RUN.json --resume");
  expect_refused(sh("WORLD_SIZE=two RANK=0 " + train), "WORLD_SIZE must be a whole number");
  expect_refused(sh("WORLD_SIZE=5 RANK=0 " + train), "found train_batch_size 12,");
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(BadInputTest, ALauncherThatStartsOneProcessIsNone) {
  for (const char* variables : {"OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0",
                                "SLURM_NTASKS=3 SLURM_PROCID=0 SLURM_JOB_ID=7"}) { // a batch script runs once
    const Finished run = sh(concat(variables, ' ', kTrireme, " train ", path("run.json"),
                                   " -n 2 --resume --set training.steps=1 --out ", path("out")));
    EXPECT_EQ(run.status, 0) << run.output;
  }
}

TEST_F(BadInputTest, APortInUse) {
  // Somebody listens on the port that torchrun-like variables name.
  const std::string command = concat(
      "python3 -c \"import socket,subprocess,os,sys; s=socket.socket(); s.bind((\\\"127.0.0.1\\\",0)); s.listen(); ",
      "e=dict(os.environ,RANK=\\\"0\\\",WORLD_SIZE=\\\"2\\\",LOCAL_RANK=\\\"0\\\",MASTER_ADDR=\\\"127.0.0.1\\\",MASTER_"
      "PORT=str(s.getsockname()[1])); ",
      "sys.exit(subprocess.call([\\\"", test::binary_dir(), "/bin/trireme-rank\\\",\\\"train\\\",\\\"",
      path("run.json"), "\\\",\\\"--out\\\",\\\"", path("out"), "\\\"],env=e))\"");
  const Finished run = sh(command, 60);
  EXPECT_TRUE(run.status == 1 || run.status == 2) << run.output;
  EXPECT_THAT(run.output, HasSubstr("in use"));
}

TEST_F(RunFolder, AValidationLossThatIsNotANumberIsSaid) {
  const Finished run = train(concat(
      "-n 1 --set training.steps=1 --set engine.optimizer.params.lr=1e30 --set data.validation=", path("tokens.bin")));
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("the validation loss at step 1 is not finite"));
  EXPECT_THAT(run.output, HasSubstr("validation loss NaN"));
}

} // namespace
} // namespace trireme::tools
