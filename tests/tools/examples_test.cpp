// What the first pages tell a newcomer to type.
#include "shell.h"

#include <gmock/gmock.h>

namespace trireme::tools {
namespace {

using testing::HasSubstr;

TEST(ExamplesTest, ThreeRanksAddTheirNumbersOverAnyBackend) { // over MPI: tests/comm/mpi_test.cpp
  const std::string program = "\"" TRIREME_BINARY_DIR "/bin/all_reduce\"";
  for (const char* backend : {"shm", "gloo"}) {
    const Finished run = sh(concat("TRIREME_BACKEND=", backend, ' ', kTrireme, " launch -n 3 --all-output -- ", program));
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
  const Finished run = sh(concat("cd \"" TRIREME_SOURCE_DIR "\" && ", kTrireme, " launch -n 2 -- \"" TRIREME_BINARY_DIR "/bin/deepspeed_json\""));
  ASSERT_EQ(run.status, 0) << run.output;
  const size_t last = run.output.find("step 300  loss ");
  ASSERT_NE(last, std::string::npos) << run.output;
  EXPECT_LT(std::stod(run.output.substr(last + 15)), 0.2) << "without learning 0.5, the variance of a sine";
}

// The README's run file for data of one's own, with a text and in the words around it.
TEST_F(RunFolder, TheReadmesRunFileTrainsOnAText) {
  const std::string readme = read_file(TRIREME_SOURCE_DIR "/README.md");
  const size_t section = readme.find("## Your own data");
  ASSERT_NE(section, std::string::npos);
  const size_t begin = readme.find("```json\n", section);
  const size_t end = readme.find("```", begin + 8);
  ASSERT_NE(end, std::string::npos);
  write_file_atomically(folder / "mine.json", readme.substr(begin + 8, end - begin - 8));
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += concat("Line ", i, " of my own text.\n");
  }
  write_file_atomically(folder / "mine.txt", text);
  const Finished run = sh(concat("cd \"", folder.string(), "\" && ", kTrireme, " train mine.json -n 2 --out runs/mine --set training.steps=2"));
  ASSERT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("validation loss"));
  const Finished generated = sh(concat("cd \"", folder.string(), "\" && ", kTrireme, " generate runs/mine --prompt \"Line \" --tokens 5"));
  EXPECT_EQ(generated.status, 0) << generated.output;
  EXPECT_THAT(generated.output, HasSubstr("Line "));
}

} // namespace
} // namespace trireme::tools
