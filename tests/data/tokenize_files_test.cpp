// Token shards have the ids of the whole documents, as PyPI tokenizers gives them.
#include <trireme/data/tokenize/tokenize.h>

#include "pack.h"
#include "temporary_folder.h"

#include <tests/support/folders.h>
#include <tests/support/made_once.h>
#include <trireme/base/file.h>
#include <trireme/data/fetch_command.h>
#include <trireme/data/token_files/token_files.h>
#include <trireme/data/tokenize/block_maker.h>
#include <trireme/data/tokenize/output_folder.h>
#include <trireme/tokenizer/tokenizer.h>

#include <gmock/gmock.h>

#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <random>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

template <typename Number>
std::vector<Number> numbers_in(const fs::path& file) {
  const std::string content = read_file(file);
  std::vector<Number> numbers(content.size() / sizeof(Number));
  std::memcpy(numbers.data(), content.data(), content.size());
  return numbers;
}

// What is in the shards of a folder.
struct Contents {
  std::vector<int32_t> ids;
  std::vector<int64_t> documents;
};

Contents read_shards(const fs::path& folder) {
  Contents contents;
  for (const TokenFile& file : open_token_files({folder}, 0)) {
    EXPECT_EQ(file.token_bytes, 2);
    const auto before = std::ssize(contents.ids);
    for (int64_t i = 0; i < file.num_documents; ++i) {
      contents.documents.push_back(before + file.document_start(i));
    }
    const unsigned char* at = file.map->bytes().data() + file.begin;
    for (int64_t i = 0; i < file.num_tokens; ++i, at += 2) {
      contents.ids.push_back(at[0] | at[1] << 8);
    }
  }
  return contents;
}

std::string bytes_of_shards(const fs::path& folder) {
  std::string bytes;
  for (const ShardIndex::Shard& shard : ShardIndex::read(folder).shards) {
    bytes += read_file(folder / shard.file);
  }
  return bytes;
}

// Random words and lines, from a small alphabet, without meaning.
std::string random_text(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) {
    for (size_t i = random() % 9; i > 0; --i) {
      text += static_cast<char>('a' + random() % 4);
    }
    text += random() % 12 == 0 ? "\n" : random() % 30 == 0 ? "\xE3\x80\x82" : " ";
  }
  return text;
}

class TokenizeFilesTest : public TemporaryFolderTest {
 protected:
  static fs::path reference() {
    return test::made_once("reference_documents", [](const fs::path& folder) {
      const CommandResult result = run_command(
          {test::python(), test::source_dir() + "/tests/data/reference_tokens.py", "documents", folder.string()},
          folder);
      ASSERT_EQ(result.exit_code, 0) << "PyPI tokenizers is needed (requirements-test.txt):\n" << result.err;
    });
  }
  TokenizeOptions options(const std::vector<fs::path>& inputs, const std::string& tokenizer = "bytes") const {
    return {.inputs = inputs, .tokenizer = tokenizer, .out = folder_ / "out", .threads = 2};
  }
  std::string refused(const TokenizeOptions& wrong) const {
    return input_error([&] { tokenize_files(wrong); });
  }
  std::string refused_lines(const std::string& lines) const { return refused(options({write("bad.jsonl", lines)})); }
};

TEST_F(TokenizeFilesTest, IdsAreThoseOfHuggingFaceWithAnyNumberOfThreads) {
  const fs::path made = reference();
  const fs::path packed = write("lines.jsonl.gz", pack(read_file(made / "lines.jsonl")));
  const fs::path packed_novel = write("novel.txt.gz", pack(read_file(made / "novel.txt")));
  for (const char* name :
       {"gpt2", "llama2", "bert", "t5"}) { // byte-level BPE, BPE of the whole text, WordPiece, Unigram
    TokenizeOptions wanted = options({made / "novel.txt", made / "lines.jsonl"}, (made / name).string());
    wanted.out = folder_ / name;
    wanted.shard_tokens = 10'007; // documents go on from shard to shard
    const TokenizeResult result = tokenize_files(wanted);
    const Contents contents = read_shards(wanted.out);
    const std::vector<int32_t> expected = numbers_in<int32_t>(made / name / "ids.bin");
    const auto [here, there] = std::ranges::mismatch(contents.ids, expected);
    EXPECT_TRUE(here == contents.ids.end() && there == expected.end())
        << name << ": differs at token " << here - contents.ids.begin() << " of " << expected.size();
    std::vector<int64_t> starts;
    int64_t start = 0;
    int64_t empty = 0;
    for (const int32_t count : numbers_in<int32_t>(made / name / "counts.bin")) {
      if (count > 0) {
        starts.push_back(start);
        start += count + 1;
      } else {
        ++empty;
      }
    }
    EXPECT_EQ(contents.documents, starts) << name;
    EXPECT_EQ(result.empty_documents, empty) << name;
    EXPECT_GE(empty, 1) << "one has no text";
    EXPECT_GT(result.index.shards.size(), 10u) << name;
    EXPECT_EQ(result.index.documents, std::ssize(starts));

    TokenizeOptions other = wanted;
    other.inputs = {packed_novel, packed};
    other.out = folder_ / "other";
    other.force = true;
    for (const int threads : {1, 5}) {
      other.threads = threads;
      tokenize_files(other);
      EXPECT_EQ(bytes_of_shards(other.out) == bytes_of_shards(wanted.out), true) << name << ' ' << threads;
    }
  }
}

// Each part begins in another phase of the words, so no part fits the one before it: they are encoded as one.
TEST_F(TokenizeFilesTest, TextThatCannotBeCutIsEncodedAsOne) {
  const fs::path file = write("tokenizer.json", R"({"pre_tokenizer": {"type": "FixedLength", "length": 7},
    "model": {"type": "BPE", "unk_token": "?", "fuse_unk": false, "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, " ": 4, "?": 5,
    "ab": 6, "cd": 7, "abcd": 8, "a ": 9, " b": 10, "aa": 11, "aaa": 12}, "merges": [["a", "b"], ["c", "d"], ["ab", "cd"], ["a", " "], [" ", "b"], ["a", "a"], ["aa", "a"]]}})");
  for (const size_t bytes : {200'000, 900'000}) {
    const std::string text = random_text(bytes, 3);
    TokenizeOptions wanted = options({write("text.txt", text)}, file.string());
    wanted.force = true;
    EXPECT_EQ(tokenize_files(wanted).joined_parts > 0, bytes > kBlockBytes);
    EXPECT_EQ(read_shards(wanted.out).ids == tokenizer::make_tokenizer(file.string())->encode(text), true) << bytes;
  }
}

// Longer than all places where a part would be cut between words.
TEST_F(TokenizeFilesTest, LongRunsOfOneCharacterAreEncodedAsOne) {
  const fs::path made = reference();
  const auto gpt2 = tokenizer::make_tokenizer((made / "gpt2").string());
  for (const std::string run : {"1", " ", "\n", "ab", "\xE6\xBC\xA2", "\n  "}) {
    std::string text = random_text(kBlockBytes / 2 - 7001, 9);
    while (text.size() < kBlockBytes + 7000) {
      text += run;
    }
    text += random_text(50'000, 4);
    TokenizeOptions wanted = options({write("text.txt", text)}, (made / "gpt2").string());
    wanted.force = true;
    wanted.end_token = "none";
    tokenize_files(wanted);
    EXPECT_EQ(read_shards(wanted.out).ids == gpt2->encode(text), true) << run;
  }
}

// What costs time costs it seldom.
TEST_F(TokenizeFilesTest, PartsOfProseFit) {
  const fs::path made = reference();
  const fs::path prose = write("prose.txt", random_text(3'000'000, 8));
  for (const std::string& tokenizer : {(made / "gpt2").string(), (made / "llama2").string(), (made / "bert").string(),
                                       (made / "t5").string(), std::string("bytes")}) {
    TokenizeOptions wanted = options({prose}, tokenizer);
    wanted.force = true;
    EXPECT_EQ(tokenize_files(wanted).joined_parts, 0) << tokenizer;
  }
}

TEST_F(TokenizeFilesTest, BytesOfAnythingAreBytes) {
  std::mt19937 random(5);
  std::string text(700'000, ' ');
  for (char& c : text) {
    c = static_cast<char>(1 + random() % 255); // no UTF-8
  }
  text[0] = 'a';
  const TokenizeResult result = tokenize_files(options({write("a.txt", text)}));
  EXPECT_EQ(result.index.end_token, std::nullopt);
  const std::vector<int32_t> ids = read_shards(folder_ / "out").ids;
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), text.begin(), text.end(),
                         [](int32_t id, char c) { return id == static_cast<unsigned char>(c); }));
}

TEST_F(TokenizeFilesTest, TheFolderSaysWhatIsInIt) {
  const fs::path made = reference();
  const std::string gpt2 = (made / "gpt2").string();
  const TokenizeResult result =
      tokenize_files(options({made / "lines.jsonl", write("a.txt", "\xEF\xBB\xBFone two")}, gpt2));
  const fs::path out = folder_ / "out";
  const ShardIndex index = ShardIndex::read(out);
  EXPECT_EQ(index.to_text(), result.index.to_text());
  EXPECT_EQ(index.tokenizer, gpt2);
  EXPECT_EQ(index.end_token->text, "<|endoftext|>");
  EXPECT_EQ(index.inputs.size(), 2u);
  EXPECT_EQ(index.inputs[1].documents, 1);
  EXPECT_EQ(index.inputs[0].bytes, static_cast<int64_t>(fs::file_size(made / "lines.jsonl")));
  EXPECT_EQ(index.documents, index.inputs[0].documents + 1);
  // Its tokenizer is the same, and the shards say so.
  EXPECT_EQ(read_file(out / "tokenizer.json"), read_file(made / "gpt2/tokenizer.json"));
  EXPECT_EQ(tokenizer::make_tokenizer(out.string())->encode("one two"),
            tokenizer::make_tokenizer(gpt2)->encode("one two"));
  TokenizeOptions again = options({write("b.txt", "three")}, out.string());
  again.out = folder_ / "again";
  EXPECT_EQ(tokenize_files(again).index.tokenizer_hash, index.tokenizer_hash);

  again.end_token = "none";
  again.force = true;
  EXPECT_EQ(tokenize_files(again).index.end_token, std::nullopt);
  again.end_token = "<mask>";
  EXPECT_EQ(tokenize_files(again).index.end_token->text, "<mask>");
  again.end_token = "<nothing> ";
  EXPECT_THAT(refused(again), AllOf(HasSubstr("\"<nothing> \" is "), HasSubstr("must be one")));
}

TEST_F(TokenizeFilesTest, TheEndTokenIsThatOfTheTokenizersFiles) {
  fs::create_directories(folder_ / "pair");
  write("pair/vocab.json", R"({"a": 0, "b": 1, "<|endoftext|>": 2, "c": 3})");
  write("pair/merges.txt", "#version: 0.2\n");
  const auto end = [&](const std::string& tokenizer) {
    TokenizeOptions wanted = options({write("a.txt", "ab")}, tokenizer);
    wanted.force = true;
    tokenize_files(wanted);
    return read_shards(wanted.out).ids;
  };
  const std::string pair = (folder_ / "pair").string();
  EXPECT_EQ(end(pair), (std::vector<int32_t>{0, 1, 2})) << "GPT-2's";
  EXPECT_EQ(end(pair + "/vocab.json," + pair + "/merges.txt"), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_TRUE(fs::exists(folder_ / "out/merges.txt"));
  write("pair/generation_config.json", R"({"eos_token_id": [3, 2]})");
  EXPECT_EQ(end(pair + "/vocab.json"), (std::vector<int32_t>{0, 1, 3}));
  write("pair/generation_config.json", R"({"eos_token_id": 4})");
  EXPECT_THAT(refused(options({folder_ / "a.txt"}, pair)),
              AllOf(HasSubstr("generation_config.json:1"), HasSubstr("outside of the tokenizer's 4 tokens")));
  write("pair/tokenizer_config.json", R"({"eos_token": {"content": "<|endoftext|>"}})");
  EXPECT_EQ(end(pair), (std::vector<int32_t>{0, 1, 2})) << "first of all";
}

// A part that ends with bytes of no character.
TEST_F(TokenizeFilesTest, BytesThatBeginNoCharacterAreCutAnywhere) {
  const std::string text = std::string(1000, 'a') + std::string(600'000, '\x80') + " the end";
  TokenizeOptions wanted = options({write("a.txt", text)});
  wanted.force = true;
  EXPECT_EQ(tokenize_files(wanted).index.tokens, std::ssize(text));
}

TEST_F(TokenizeFilesTest, JsonLinesHaveTwoNamesInAnyCase) {
  for (const char* name : {"a.ndjson", "b.JSONL"}) {
    TokenizeOptions wanted = options({write(name, "{\"text\": \"abc\"}\n")});
    wanted.force = true;
    EXPECT_EQ(tokenize_files(wanted).index.tokens, 3) << name;
  }
}

TEST_F(TokenizeFilesTest, ALinkedFolderGetsTheShards) {
  fs::create_directories(folder_ / "real");
  fs::create_directory_symlink("real", folder_ / "link");
  TokenizeOptions wanted = options({write("a.txt", "first")});
  wanted.out = folder_ / "link";
  tokenize_files(wanted);
  const std::string before = bytes_of_shards(folder_ / "real");
  wanted.inputs = {write("b.txt", "second")};
  wanted.force = true;
  tokenize_files(wanted);
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_NE(bytes_of_shards(folder_ / "real"), before);
}

// What has appeared at the place since the start stays, and so do the new shards.
TEST_F(TokenizeFilesTest, WhatAppearsMeanwhileIsNotReplaced) {
  const fs::path place = folder_ / "out";
  fs::path kept;
  {
    NewFolder folder = make_output_folder(place, /*replace=*/true);
    write_file_atomically(folder.path() / "shard", "new");
    fs::create_directories(place);
    write("out/results", "mine");
    EXPECT_THAT(input_error([&] { put_in_place(folder, /*replace=*/true); }), HasSubstr("are no token shards"));
  }
  EXPECT_EQ(read_file(place / "results"), "mine");
  for (const auto& item : fs::directory_iterator(folder_)) {
    if (item.path().filename().string().starts_with("out.finished.")) {
      kept = item.path();
    }
  }
  EXPECT_EQ(read_file(kept / "shard"), "new");
}

// Half of a text, or half of each of two, would be tokens without a word.
TEST_F(TokenizeFilesTest, AnInputThatChangesWhileItIsReadIsRefused) {
  const std::string text = random_text(8 << 20, 1); // more than the blocks under way
  for (const bool shrinks : {true, false}) {
    TokenizeOptions wanted = options({write("a.txt", text), write("b.txt", "the last one")});
    bool changed = false;
    wanted.progress = [&](const TokenizeProgress&) {
      if (!std::exchange(changed, true)) {
        if (shrinks) {
          fs::resize_file(wanted.inputs[0], text.size() / 2);
        } else {
          fs::rename(write("other", text), wanted.inputs[0]);
        }
      }
    };
    EXPECT_THAT(refused(wanted), HasSubstr("a.txt has changed while it was read"));
    EXPECT_FALSE(fs::exists(wanted.out));
  }
}

TEST_F(TokenizeFilesTest, AFinishedFolderIsKeptAndNothingElseIsLeft) {
  TokenizeOptions wanted = options({write("a.txt", "first")});
  fs::create_directories(folder_ / "out");
  tokenize_files(wanted); // an empty folder may be there
  const std::string before = bytes_of_shards(wanted.out);
  wanted.inputs = {write("b.txt", "second")};
  EXPECT_THAT(refused(wanted), AllOf(HasSubstr("already has finished token shards"), HasSubstr("--force")));
  EXPECT_EQ(bytes_of_shards(wanted.out), before);
  wanted.force = true;
  wanted.inputs.push_back(write("bad.jsonl", "{\"text\": 1}\n"));
  EXPECT_THAT(refused(wanted), HasSubstr("bad.jsonl:1"));
  EXPECT_EQ(bytes_of_shards(wanted.out), before) << "what fails changes nothing";
  fs::create_directories(folder_ / "out.unfinished.123456"); // of a killed process
  wanted.inputs.pop_back();
  tokenize_files(wanted);
  EXPECT_NE(bytes_of_shards(wanted.out), before);
  for (const auto& item : fs::directory_iterator(folder_)) {
    EXPECT_EQ(item.path().string().find("unfinished"), std::string::npos) << item.path();
  }

  wanted.inputs = {folder_ / "a.txt"};
  wanted.out = folder_;
  EXPECT_THAT(refused(wanted), AllOf(HasSubstr("a.txt is inside of the output folder")));
  fs::create_directories(folder_ / "mine");
  write("mine/notes", "x");
  wanted.out = folder_ / "mine/";
  EXPECT_THAT(refused(wanted), HasSubstr("has files that are no token shards"));
  wanted.out = folder_ / "a.txt";
  wanted.inputs = {folder_ / "b.txt"};
  EXPECT_THAT(refused(wanted), HasSubstr("a.txt is a file"));
}

TEST_F(TokenizeFilesTest, BadLinesAreNamed) {
  EXPECT_THAT(refused_lines("{\"text\": \"a\"}\n\n{\"txt\": \"b\"}\n"),
              AllOf(HasSubstr("bad.jsonl:3: the key \"text\" is missing"), HasSubstr("--text-key")));
  EXPECT_THAT(refused_lines("[1]\n"), HasSubstr("bad.jsonl:1: a line must be an object, this is a list"));
  EXPECT_THAT(refused_lines("\"text\"\n"), HasSubstr("must be an object, this is a text"));
  EXPECT_THAT(refused_lines("{\"text\": [\"a\"]}\n"), HasSubstr("\"text\" is a list, not a text"));
  EXPECT_THAT(refused_lines("{\"text\": null}\n"), HasSubstr("\"text\" is null, not a text"));
  EXPECT_THAT(refused_lines("{\"text\": {\"text\": \"a\"}}\n"), HasSubstr("\"text\" is an object, not a text"));
  EXPECT_THAT(refused_lines("{\"text\": \"a\", \"text\": \"b\"}\n"), HasSubstr("appears twice"));
  EXPECT_THAT(refused_lines("{\"text\": \"a\"\n"), HasSubstr("bad.jsonl:1: this is not valid JSON"));
  EXPECT_THAT(refused_lines("{\"text\": \"a\"} x\n"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refused_lines("{\"text\": \"\xff\"}\n"), HasSubstr("bad.jsonl:1: invalid UTF-8"));
  EXPECT_THAT(refused_lines("{\"text\": \"\\ud800\"}\n"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refused_lines("{\"a\": " + std::string(200'000, '[') + "\n"), HasSubstr("nests deeper than 100"));
  EXPECT_THAT(refused_lines("\n \n"), HasSubstr("has no token"));
  EXPECT_THAT(refused_lines("{\"text\": \"" + std::string(33 << 20, 'a') + "\"}\n"), HasSubstr("longer than 33.6 MB"));
  TokenizeOptions other = options({write("good.jsonl", "{\"content\": \"ab\", \"text\": 7}\r\n")});
  other.lines.keys.text_key = "content";
  tokenize_files(other);
  EXPECT_EQ(read_shards(folder_ / "out").ids, (std::vector<int32_t>{'a', 'b'}));
}

TEST_F(TokenizeFilesTest, BadFilesAreNamedBeforeWork) {
  const auto refused_file = [&](const fs::path& file) { return refused(options({write("good.txt", "good"), file})); };
  EXPECT_THAT(refused_file(folder_ / "absent.txt"), AllOf(HasSubstr("absent.txt"), HasSubstr("No such file")));
  EXPECT_THAT(refused_file(folder_), HasSubstr("is not a file"));
  int pipe[2] = {};
  ASSERT_EQ(::pipe(pipe), 0);
  EXPECT_THAT(refused_file(concat("/dev/fd/", pipe[0])), HasSubstr(concat("/dev/fd/", pipe[0], " is not a file")));
  ::close(pipe[0]);
  ::close(pipe[1]);
  EXPECT_THAT(refused_file(write("empty.txt", "")), HasSubstr("empty.txt is empty"));
  EXPECT_THAT(refused_file(write("empty.gz", pack(""))), HasSubstr("empty.gz is empty"));
  EXPECT_THAT(refused_file(write("cut.gz", pack(random_text(9000, 1)).substr(0, 100))),
              HasSubstr("middle of its gzip"));
  EXPECT_THAT(refused_file(write("twice.gz", pack(pack("text")))), HasSubstr("only one layer of gzip"));
  EXPECT_THAT(refused_file(write("a.zst", std::string("\x28\xB5\x2F\xFD\0\0\0\0", 8))), HasSubstr("packed with zstd"));
  EXPECT_THAT(refused_file(write("wide.txt", std::string("\xFF\xFE"
                                                         "a\0b\0",
                                                         6))),
              HasSubstr("UTF-16"));
  EXPECT_THAT(refused_file(write("a.json", "{}")), AllOf(HasSubstr(".json files are not read"), HasSubstr(".jsonl")));
  EXPECT_THAT(refused_file(write("a.parquet", "PAR1")), HasSubstr(".parquet files are not read"));
  EXPECT_THAT(refused(options({folder_ / "good.txt"}, "nothing.json")), HasSubstr("nothing.json"));
  EXPECT_THAT(refused(options({})), HasSubstr("no files of text"));
  // A character without a token is an error of the text, not of the tokenizer alone.
  const fs::path small = write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  EXPECT_THAT(refused(options({folder_ / "good.txt"}, small.string())),
              AllOf(HasSubstr("good.txt: "), HasSubstr("no token")));
}

TEST(CutBetweenWordsTest, PrefersSpacesThenLinesThenCharacters) {
  const auto cut = [](std::string_view text, size_t from, size_t to) { return cut_between_words(text, from, to); };
  EXPECT_EQ(cut("aa bb\ncc dd", 1, 9), 8u) << "the last space";
  EXPECT_EQ(cut("aa bb\ncc.dd", 3, 9), 5u) << "a line";
  EXPECT_EQ(cut("aa. bb", 1, 5), 5u) << "no word ends before this space";
  EXPECT_EQ(cut("\xE6\xBC\xA2\xE3\x80\x82\xE6\xBC\xA2\xE6\xBC\xA2", 1, 10), 6u) << "behind a full stop";
  EXPECT_EQ(cut("\xE6\xBC\xA2\xE6\xBC\xA2", 1, 5), 3u) << "never inside a character";
}

} // namespace
} // namespace trireme::data
