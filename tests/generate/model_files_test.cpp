#include <trireme/generate/model_files.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <tests/support/folders.h>

#include <gmock/gmock.h>

namespace trireme::generate {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A token for each letter.
std::string tokenizer_of(const std::string& letters) {
  std::string vocabulary;
  for (size_t i = 0; i < letters.size(); ++i) {
    vocabulary += concat(i == 0 ? "" : ", ", '"', letters[i], "\": ", i);
  }
  return concat(R"({"model": {"type": "BPE", "vocab": {)", vocabulary, R"(}, "merges": []}})");
}

TEST(ModelFilesTest, ATokenizerThatWasReplacedSinceItWasReadIsNotKept) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_model_files_", ::getpid());
  fs::create_directories(folder / "run");
  write_file_atomically(folder / "letters.json", tokenizer_of("ab"));
  write_file_atomically(folder / "text.txt", "abababababab");
  config::RunConfig run;
  run.data.kind = data::DataOptions::Kind::text;
  run.data.train = {folder / "text.txt"};
  run.data.tokenizer = (folder / "letters.json").string();
  run.data.sequence_length = 2;
  const data::Datasets datasets = data::make_datasets(run.data);
  keep_model_files(run, folder / "run", datasets, /*resumed=*/false);
  EXPECT_EQ(read_file(folder / "run/model/tokenizer.json"), tokenizer_of("ab"));
  write_file_atomically(folder / "letters.json", tokenizer_of("ba"));
  EXPECT_THAT([&] { keep_model_files(run, folder / "run", datasets, /*resumed=*/false); },
              testing::ThrowsMessage<InputError>(HasSubstr("was replaced after it was read")));
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::generate
