// scripts/check_gpu where there is no GPU: its runs are possible, and it says what is not as it should be.
#include "run_folder_on_disk.h"

#include <tests/support/folders.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <set>
#include <vector>

namespace trireme::tools {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class CheckGpuTest : public RunFolderOnDisk {
 protected:
  /// A program trireme that does `before` first.
  std::string program_that(const std::string& before) const {
    const std::string program = path("programs/trireme");
    std::filesystem::create_directories(folder / "programs");
    write_file_atomically(program,
                          concat("#!/bin/sh\n", before, "\nexec \"" + test::binary_dir() + "/bin/trireme\" \"$@\"\n"));
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return concat("--bin ", path("programs"), ' ');
  }
  std::string check_command(const std::string& arguments) const {
    return concat("python3 \"" + test::source_dir() + "/scripts/check_gpu\" --jobs 1 --bin \"" + test::binary_dir() +
                      "/bin\" --folder ",
                  path("runs"), " --set model.hidden=64 --set model.sequence_length=32 ", arguments);
  }
  Finished check(const std::string& arguments) const { return sh(check_command(arguments), 500); }
  /// The lines of rows.jsonl that are whole.
  std::vector<json> rows() const {
    std::vector<json> found;
    std::ifstream in(path("runs") + "/rows.jsonl");
    for (std::string line; std::getline(in, line);) {
      if (json row = json::parse(line, nullptr, /*allow_exceptions=*/false); row.is_object()) {
        found.push_back(std::move(row));
      }
    }
    return found;
  }

  const std::string kTinyBench =
      "--bench=\"--rows 16 --hidden 64 --vocab 100 --params 5000 --product 16 --bytes 4096 --repeats 1\"";
};

TEST_F(CheckGpuTest, RunsAreWhatTheyAreComparedWith) {
  const Finished finished = check("--device cpu resumed 2-ranks-zero-bubble");
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("4 passed, 0 failed"));
}

TEST_F(CheckGpuTest, ARunOfWhichARankIsKilledIsAsOneOfWhichNoneIs) {
  const Finished finished = check("--device cpu 2-ranks-killed-pipeline");
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("4 passed, 0 failed"));
}

TEST_F(CheckGpuTest, ARunThatFailsIsSaid) {
  const Finished finished = check("--device cuda:99 again");
  EXPECT_EQ(finished.status, 1);
  EXPECT_THAT(finished.output, HasSubstr("1 passed, 2 failed"));
  EXPECT_THAT(finished.output, HasSubstr("FAILED exit status 2"));
}

TEST_F(CheckGpuTest, AnotherLossIsSaid) {
  const std::string another_seed = program_that("case $2 in *again*) set -- \"$@\" --set training.seed=8;; esac");
  const Finished finished = check(concat("--device cpu ", another_seed, "again"));
  EXPECT_EQ(finished.status, 1) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("2 passed, 1 failed"));
}

TEST_F(CheckGpuTest, ARunOfWhichNoRankWasKilledIsSaid) {
  const Finished finished =
      check(concat("--device cpu ", program_that("unset TRIREME_FAULT"), "2-ranks-killed-pipeline"));
  EXPECT_EQ(finished.status, 1) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("FAILED no rank was killed and started again"));
  EXPECT_THAT(finished.output, HasSubstr("3 passed, 1 failed"));
}

TEST_F(CheckGpuTest, APartIsNotDoneAgain) {
  const std::string parts = "--device cpu --parts facts,nccl,kernels,equality cpu " + kTinyBench;
  const Finished first = check(parts);
  EXPECT_EQ(first.status, 0) << first.output;
  EXPECT_THAT(first.output, HasSubstr("4 passed, 0 failed"));
  const std::vector<json> seen = rows();
  const auto count = [&](const char* part, const char* key, const auto& value) {
    return std::count_if(seen.begin(), seen.end(),
                         [&](const json& row) { return row["part"] == part && row.value(key, json()) == value; });
  };
  EXPECT_EQ(count("facts", "row", "copy"), 1);
  EXPECT_EQ(count("facts", "row", "product"), 2);
  EXPECT_EQ(count("nccl", "good", true), 6) << "over gloo";
  EXPECT_EQ(count("kernels", "row", "kernel"), 2 * 13 + 9 + 2);
  EXPECT_EQ(count("equality", "complete", true), 1);
  for (const json& row : seen) {
    EXPECT_TRUE(!row.contains("of_copy") || row["of_copy"].get<double>() > 0) << row;
  }
  EXPECT_EQ(check(parts).status, 0);
  EXPECT_EQ(rows().size(), seen.size()) << "all is complete";
  const Finished again = check("--device cpu --parts nccl --again " + kTinyBench);
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(rows().size(), seen.size() + 7);
}

TEST_F(CheckGpuTest, WhatWasCutGoesOn) {
  const std::string command = check_command("--device cpu --parts nccl,equality again " + kTinyBench);
  const Finished cut = sh(concat(command, " & script=$!; while ! grep -q \"all_gather\" ", path("runs"),
                                 "/rows.jsonl; do sleep 0.02; done; kill -9 $script; wait"));
  const auto complete = [&] {
    const std::vector<json> seen = rows();
    return std::count_if(seen.begin(), seen.end(), [](const json& row) { return row.value("complete", false); });
  };
  EXPECT_LT(complete(), 4) << cut.output;
  std::ofstream(path("runs") + "/rows.jsonl", std::ios::app) << R"({"part": "nccl", "uni)"; // the machine was cut
  const Finished finished = sh(command, 500);
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("4 passed, 0 failed"));
  EXPECT_EQ(complete(), 4);
}

TEST_F(CheckGpuTest, WhatDoesNotFitIntoTheTimeIsLeftAndSaid) {
  const Finished finished = check("--device cpu --parts facts,nccl --seconds 5");
  EXPECT_EQ(finished.status, 1) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("left, not enough of 5 s: facts: facts, nccl: one rank over gloo"));
  EXPECT_THAT(rows(), testing::IsEmpty());
}

TEST_F(CheckGpuTest, StepsStandBesideThoseOfPyTorch) {
  const Finished finished =
      check(concat("--device cpu --parts steps --sizes tiny --ways fp32 --batches 2 --engines trireme,eager --steps 2 "
                   "--python \"",
                   test::python(), '"'));
  EXPECT_EQ(finished.status, 0) << finished.output;
  const std::vector<json> seen = rows();
  ASSERT_EQ(seen.size(), 2) << finished.output;
  for (const json& row : seen) {
    EXPECT_EQ(row["error"], "") << row;
    EXPECT_NEAR(row["tokens_per_s"].get<double>(), 2 * 32 / (row["step_ms"].get<double>() / 1e3), 1e-3);
    EXPECT_NEAR(row["first_loss"].get<double>(), seen[0]["first_loss"].get<double>(), 1e-4);
    EXPECT_NEAR(row["last_loss"].get<double>(), seen[0]["last_loss"].get<double>(), 1e-4);
  }
}

TEST_F(CheckGpuTest, SeveralRanksAreComparedWithOne) {
  const std::string several = "--device cpu --gpus 2 --parts several --sizes tiny --batches 2 --steps 2 ";
  const Finished finished = check(several);
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("13 passed, 0 failed"));
  std::set<std::string> operations, layouts, scaled;
  for (const json& row : rows()) {
    if (row.contains("op")) {
      EXPECT_TRUE(row["good"].get<bool>()) << row;
      operations.insert(row["op"]);
    } else if (row.contains("losses")) {
      EXPECT_EQ(row["losses"].size(), 12) << row;
      layouts.insert(row["unit"]);
    } else if (row.contains("tokens_per_s")) {
      EXPECT_TRUE(row["ranks"] == 1 || row["of_linear"].get<double>() > 0) << row;
      scaled.insert(row["unit"]);
    }
  }
  EXPECT_EQ(operations.size(), 7);
  EXPECT_THAT(layouts, testing::UnorderedElementsAre("one", "ddp-2", "zero1-2", "zero2-2", "zero3-2", "tensor-2",
                                                     "pipeline-2", "context-2"));
  EXPECT_EQ(scaled.size(), 4);

  const std::string another_seed = program_that("case $2 in *zero2-2*) set -- \"$@\" --set training.seed=8;; esac");
  std::filesystem::create_symlink(test::binary_dir() + "/bin/trireme-rank", path("programs/trireme-rank"));
  const Finished wrong = check(concat(several, another_seed, "--again"));
  EXPECT_EQ(wrong.status, 1) << wrong.output;
  EXPECT_THAT(wrong.output, HasSubstr("12 passed, 1 failed"));
}

TEST_F(CheckGpuTest, OneGpuHasNothingToCompare) {
  const Finished finished = check("--device cpu --gpus 1 --parts several");
  EXPECT_EQ(finished.status, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("0 passed, 0 failed"));
}

TEST_F(CheckGpuTest, UnknownPartsAreRefused) {
  const Finished finished = check("--parts speed");
  EXPECT_EQ(finished.status, 1);
  EXPECT_THAT(finished.output,
              HasSubstr("no part is named speed. There are: facts nccl several kernels equality steps"));
}

TEST_F(CheckGpuTest, UnknownNamesAreRefused) {
  const Finished finished = check("zero-9");
  EXPECT_EQ(finished.status, 1);
  EXPECT_THAT(finished.output, HasSubstr("no run is named so. There are: cpu cuda again"));
  EXPECT_THAT(finished.output, Not(HasSubstr("passed")));
}

} // namespace
} // namespace trireme::tools
