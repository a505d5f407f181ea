#include <trireme/generate/model_files.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/generate/chat_prompt.h>

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

// What `generate --chat` and an exported folder have is what the run was trained with.
TEST(ModelFilesTest, TheRunsChatTemplateTakesThePlaceOfTheTokenizers) {
  const fs::path folder = fs::path(testing::TempDir()) / concat("trireme_model_files_", ::getpid());
  const fs::path kept = folder / "run/model/chat_template.jinja";
  fs::create_directories(folder / "run");
  fs::create_directories(folder / "letters");
  write_file_atomically(folder / "letters/tokenizer.json", tokenizer_of("abt:"));
  write_file_atomically(folder / "letters/chat_template.jinja", "folder's");
  write_file_atomically(folder / "letters/tokenizer_config.json",
                        R"({"chat_template": [{"name": "brief", "template": "a:{{ messages[0].content }}"}]})");
  write_file_atomically(folder / "own.jinja", "b:{{ messages[0].content }}");
  write_file_atomically(folder / "lines.jsonl", R"({"messages": [{"role": "user", "content": "ab"}]})");
  config::RunConfig run;
  run.data.kind = data::DataOptions::Kind::json_lines;
  run.data.train = {folder / "lines.jsonl"};
  run.data.tokenizer = (folder / "letters").string();
  run.data.loss_on = data::LossOn::all;
  run.data.sequence_length = 2;
  const auto keep = [&](const std::string& name, bool resumed = false) {
    run.data.chat_template = name;
    keep_model_files(run, folder / "run", data::make_datasets(run.data), resumed);
    return read_file(kept);
  };
  const std::string own = (folder / "own.jinja").string();
  EXPECT_EQ(keep(own), "b:{{ messages[0].content }}");
  EXPECT_EQ(keep(kept.string()), "b:{{ messages[0].content }}") << "read from the folder that is made anew";
  EXPECT_EQ(keep("brief"), "a:{{ messages[0].content }}");
  EXPECT_EQ(keep(own, /*resumed=*/true), "b:{{ messages[0].content }}");
  Trained trained;
  trained.tokenizer = data::make_tokenizer(run.data.tokenizer);
  trained.files = folder / "run/model";
  EXPECT_EQ(ChatPrompt(trained, "").text_of("ab"), "b:ab");

  // A mixture has one where its sets agree.
  const data::DataOptions lines = run.data;
  const data::Datasets datasets = data::make_datasets(lines);
  const auto keep_of_sets = [&](const std::string& first, const std::string& second) {
    run.data = {};
    run.data.kind = data::DataOptions::Kind::mixture;
    run.data.tokenizer = lines.tokenizer;
    for (const std::string& name : {first, second}) {
      auto set = std::make_shared<data::DataOptions>(lines);
      set->chat_template = name;
      run.data.sets.push_back({.data = set});
    }
    keep_model_files(run, folder / "run", datasets, /*resumed=*/false);
    return read_file(kept);
  };
  EXPECT_EQ(keep_of_sets(own, own), "b:{{ messages[0].content }}");
  EXPECT_EQ(keep_of_sets(own, "brief"), "folder's");
  EXPECT_EQ(keep_of_sets("", ""), "folder's");
  fs::remove_all(folder);
}

} // namespace
} // namespace trireme::generate
