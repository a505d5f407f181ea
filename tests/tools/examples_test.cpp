// What the first pages tell a newcomer to type.
#include "shell.h"

#include <tests/support/folders.h>

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using testing::HasSubstr;

TEST(ExamplesTest, ThreeRanksAddTheirNumbersOverAnyBackend) { // over MPI: tests/comm/mpi_test.cpp
  const std::string program = "\"" + test::binary_dir() + "/bin/all_reduce\"";
  for (const char* backend : {"shm", "gloo"}) {
    const Finished run =
        sh(concat("TRIREME_BACKEND=", backend, ' ', kTrireme, " launch -n 3 --all-output -- ", program));
    EXPECT_EQ(run.status, 0) << run.output;
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(run.output, HasSubstr(concat("rank ", rank, " of 3 over ", backend, ": [15, 27, 39]")));
    }
  }
  const Finished two = sh(concat(kTrireme, " launch -n 2 -- ", program));
  EXPECT_EQ(two.status, 2);
  EXPECT_THAT(two.output, HasSubstr("there are 2. Type: trireme launch -n 3"));
}

TEST(ExamplesTest, ADeepSpeedFileTrainsAModelOfOnesOwn) {
  const Finished run = sh(concat("cd \"" + test::source_dir() + "\" && ", kTrireme,
                                 " launch -n 2 -- \"" + test::binary_dir() + "/bin/deepspeed_json\""));
  ASSERT_EQ(run.status, 0) << run.output;
  const size_t last = run.output.find("step 300  loss ");
  ASSERT_NE(last, std::string::npos) << run.output;
  EXPECT_LT(std::stod(run.output.substr(last + 15)), 0.2) << "without learning 0.5, the variance of a sine";
}

// A text file of sentences, for bert_pipeline.
TEST_F(RunFolder, BertAsAPipelineLearnsMaskedText) {
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += concat("It is line ", i, " of a text that repeats itself. ");
  }
  write_file_atomically(folder / "train.txt", text);
  const std::string program = concat("\"" + test::binary_dir() + "/bin/bert_pipeline\" --text ", path("train.txt"),
                                     " --steps 3 --layers 2 --hidden 32 --heads 2 --length 32 --batch 8");
  std::vector<double> last; // the loss after three steps
  for (const char* more : {" --stages 2", " --stages 2 --schedule naive --micro-batches 1", " --stages 1"}) {
    const Finished run = sh(concat(kTrireme, " launch -n 2 -- ", program, more), 300);
    ASSERT_EQ(run.status, 0) << run.output;
    EXPECT_THAT(run.output, HasSubstr("rank 1: at most"));
    const size_t at = run.output.find("step 3  loss ");
    ASSERT_NE(at, std::string::npos) << run.output;
    last.push_back(std::stod(run.output.substr(at + 13)));
  }
  EXPECT_NEAR(last[0], 5.58, 0.1) << "without learning log 258";
  EXPECT_NEAR(last[1], last[0], 1e-3) << "the schedule changes no loss";
  const Finished wrong = sh(concat(kTrireme, " launch -n 2 -- ", program, " --stage 2"));
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.output, HasSubstr("there is no option \"--stage\""));
}

// CIFAR-10's binary files: a label and 3 x 32 x 32 bytes for each image.
TEST_F(RunFolder, AlexNetAsAPipelineTrainsOnImages) {
  std::string images;
  for (int i = 0; i < 40; ++i) {
    images += static_cast<char>(i % 10);
    images += std::string(3 * 32 * 32, static_cast<char>(i % 10 * 25));
  }
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                           "data_batch_5.bin", "test_batch.bin"}) {
    write_file_atomically(folder / name, images);
  }
  const Finished run =
      sh(concat(kTrireme, " launch -n 2 -- \"" + test::binary_dir() + "/bin/alexnet_pipeline\" --cifar ",
                folder.string(), " --stages 2 --steps 2 --micro 2 --micro-batches 2 --test 8"),
         300);
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("step 2  loss "));
  EXPECT_THAT(run.output, HasSubstr("accuracy on test images: "));
  EXPECT_THAT(run.output, HasSubstr("rank 1: "));
}

} // namespace
} // namespace trireme::tools
