// Files of tokens that say what they are: shards, folders of them, and Megatron's pairs.
#include <trireme/data/token_files/token_files.h>

#include "temporary_folder.h"

#include <tests/support/folders.h>
#include <trireme/base/file.h>
#include <trireme/data/fetch_command.h>
#include <trireme/data/make_dataset.h>
#include <trireme/data/token_files/shard_format.h>
#include <trireme/data/tokenize/shard_writer.h>
#include <trireme/data/tokenize/tokenize.h>
#include <trireme/data/tokens.h>

#include <gmock/gmock.h>

#include <sys/stat.h>
#include <cstring>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::vector<int64_t> tokens_in(const TokensDataset& dataset) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const std::vector<int64_t> index{i};
    tokens.push_back(dataset.get(index).input()[0][0].item<int64_t>());
  }
  return tokens;
}

class TokenFilesTest : public TemporaryFolderTest {
 protected:
  // Documents of 1, 2, ... tokens, in shards of `shard_tokens`.
  fs::path make_shards(const std::string& name, int64_t shard_tokens, ShardWriter::Options options = {}) {
    const fs::path folder = folder_ / name;
    fs::create_directories(folder);
    options.folder = folder;
    options.shard_tokens = shard_tokens;
    options.vocab_size = options.vocab_size == 0 ? 300 : options.vocab_size;
    options.tokenizer_hash = options.tokenizer_hash == 0 ? 7 : options.tokenizer_hash;
    ShardWriter writer(options);
    ShardIndex index;
    int32_t token = 0;
    for (int32_t length = 1; length <= 10; ++length) {
      std::vector<int32_t> document;
      for (int32_t i = 0; i < length; ++i) {
        document.push_back(token++ * 5);
      }
      writer.append(document, {}, true);
    }
    index.shards = writer.finish();
    index.tokenizer = "bytes";
    index.tokenizer_hash = options.tokenizer_hash;
    index.vocab_size = options.vocab_size;
    index.token_bytes = options.token_bytes;
    write_file_atomically(folder / kShardIndexName, index.to_text());
    return folder;
  }
  std::string refused(const std::vector<fs::path>& files, int64_t vocab_size = 0, int64_t token_bytes = 0) const {
    return input_error([&] { TokensDataset(files, 1, vocab_size, token_bytes).check(); });
  }
  // A shard with some bytes changed, and its header's checksum right again if it is to be.
  fs::path changed(const fs::path& shard, size_t at, const std::string& bytes) const {
    std::string content = read_file(shard);
    content.replace(at, bytes.size(), bytes);
    return write("changed.bin", content);
  }
};

TEST_F(TokenFilesTest, AFolderOfShardsIsOneSequenceWithDocuments) {
  for (const int64_t token_bytes : {2, 4}) {
    const fs::path folder = make_shards(concat("shards", token_bytes), 12, {.token_bytes = token_bytes});
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 6) << "55 tokens";
    const TokensDataset dataset({folder}, 1);
    ASSERT_EQ(dataset.num_tokens(), 55);
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < 54; ++i) {
      expected.push_back(5 * i);
    }
    EXPECT_EQ(tokens_in(dataset), expected);
    ASSERT_EQ(dataset.num_documents(), 10);
    for (int64_t i = 0; i < 10; ++i) {
      EXPECT_EQ(dataset.document_start(i), i * (i + 1) / 2);
    }
    EXPECT_THROW(dataset.document_start(10), Error);
  }
}

TEST_F(TokenFilesTest, ShardsAndRawFilesMayBeMixed) {
  const fs::path folder = make_shards("shards", 100);
  const fs::path raw = write_tokens("raw.bin", {1, 2, 3});
  const TokensDataset dataset({raw, folder / "tokens-00000.bin", folder}, 1, 300);
  EXPECT_EQ(dataset.num_tokens(), 3 + 55 + 55);
  EXPECT_EQ(dataset.num_documents(), std::nullopt);
  EXPECT_EQ(tokens_in(dataset)[3 + 54], 270);
  EXPECT_EQ(tokens_in(dataset)[3 + 55], 0);
}

// Opening one would wait for a writer.
TEST_F(TokenFilesTest, APipeIsRefused) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refused({folder_ / "pipe"}), HasSubstr("not a file"));
}

// The header says it, so that no token is read: here tokens that break the promise are found only when they are used.
TEST_F(TokenFilesTest, TheVocabularyIsComparedWithTheHeader) {
  const fs::path folder = make_shards("shards", 100);
  EXPECT_EQ(refused({folder}, 300), "");
  EXPECT_THAT(refused({folder}, 299),
              AllOf(HasSubstr("tokens of a vocabulary of 300"), HasSubstr("vocab_size is 299")));
  const fs::path wrong = changed(folder / "tokens-00000.bin", kShardHeaderBytes + 2, "\xFF\xFF");
  EXPECT_EQ(refused({wrong}, 300), "");
  const TokensDataset dataset({wrong}, 1, 300);
  const std::vector<int64_t> first{0};
  EXPECT_THAT(input_error([&] { dataset.get(first); }), HasSubstr("changed.bin: token 1 is 65535"));
  const fs::path wide = make_shards("wide", 100, {.token_bytes = 4, .vocab_size = 128256});
  EXPECT_EQ(refused({wide}, 128256), "") << "widths need not be named";
}

TEST_F(TokenFilesTest, WhatDoesNotFitTogetherIsRefused) {
  const fs::path narrow = make_shards("narrow", 100);
  const fs::path wide = make_shards("wide", 100, {.token_bytes = 4});
  EXPECT_THAT(refused({narrow, wide}),
              AllOf(HasSubstr("has tokens of 2 bytes"), HasSubstr("wide/tokens-00000.bin of 4")));
  EXPECT_THAT(refused({write_tokens("raw.bin", {1, 2}), wide}), HasSubstr("of the same size"));
  EXPECT_THAT(refused({narrow}, 0, 4), AllOf(HasSubstr("data.token_bytes is 4"), HasSubstr("Remove data.token_bytes")));
  EXPECT_EQ(refused({narrow}, 0, 2), "");
  const fs::path other = make_shards("other", 100, {.tokenizer_hash = 8});
  EXPECT_THAT(refused({narrow, other}), HasSubstr("were made with different tokenizers"));
  DataOptions options;
  options.kind = DataOptions::Kind::tokens;
  options.sequence_length = 2;
  options.train = {narrow};
  options.validation = {other};
  EXPECT_THAT(input_error([&] { make_datasets(options); }), HasSubstr("the validation data, were made with different"));
}

TEST_F(TokenFilesTest, DamagedShardsAreNamed) {
  const fs::path folder = make_shards("shards", 100);
  const fs::path shard = folder / "tokens-00000.bin";
  const std::string whole = read_file(shard);
  for (const size_t bytes : {size_t{8}, size_t{127}}) {
    EXPECT_THAT(refused({write("cut.bin", whole.substr(0, bytes))}),
                AllOf(HasSubstr("cut.bin"), HasSubstr("inside its header")));
  }
  for (const size_t bytes : {kShardHeaderBytes, whole.size() - 1}) {
    EXPECT_THAT(refused({write("cut.bin", whole.substr(0, bytes))}),
                AllOf(HasSubstr("it is cut off"), HasSubstr("make it again")));
  }
  EXPECT_THAT(refused({write("long.bin", whole + "x")}), HasSubstr("something follows its end"));
  EXPECT_THAT(refused({changed(shard, 8, "\x03")}), HasSubstr("a token shard of version 3, this program reads 1 to 2"));
  EXPECT_THAT(refused({changed(shard, 24, "\x09")}), HasSubstr("its header is damaged"));
  EXPECT_THAT(refused({changed(shard, whole.size() - 8, "\xFF")}), HasSubstr("its document table is damaged: entry 9"));
  EXPECT_TRUE(has_right_checksum(FileMap(shard).bytes(), open_token_files({shard}, 0)[0].checksum));
  const fs::path flipped = changed(shard, kShardHeaderBytes, "\x01");
  EXPECT_FALSE(has_right_checksum(FileMap(flipped).bytes(), open_token_files({flipped}, 0)[0].checksum));
}

TEST_F(TokenFilesTest, AFolderIsComparedWithItsIndex) {
  const fs::path folder = make_shards("shards", 20);
  const fs::path other = make_shards("other", 30);
  fs::copy_file(other / "tokens-00000.bin", folder / "tokens-00000.bin", fs::copy_options::overwrite_existing);
  EXPECT_THAT(refused({folder}),
              AllOf(HasSubstr("shards/tokens-00000.bin"), HasSubstr("not the shard that index.json describes")));
  fs::remove(folder / "tokens-00000.bin");
  EXPECT_THAT(refused({folder}), AllOf(HasSubstr("tokens-00000.bin"), HasSubstr("it is missing")));
  fs::remove(folder / "index.json");
  EXPECT_THAT(refused({folder}), AllOf(HasSubstr("has no index.json"), HasSubstr("has finished")));
  write("shards/index.json", "{\"format\": \"other\"}");
  EXPECT_THAT(refused({folder}), AllOf(HasSubstr("index.json:1"), HasSubstr("no index of token shards")));
  std::string text = read_file(other / "index.json");
  const std::string name = "tokens-00000.bin";
  text.replace(text.find(name), name.size(), "../tokens.bin");
  write("other/index.json", text);
  EXPECT_THAT(refused({other}), HasSubstr("must be the name of a file in this folder"));
}

TEST_F(TokenFilesTest, MegatronsPairIsRead) {
  const CommandResult made = run_command(
      {test::python(), test::source_dir() + "/tests/data/reference_tokens.py", "megatron", folder_.string()}, folder_);
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::string tokens = read_file(folder_ / "tokens.bin");
  const std::string starts = read_file(folder_ / "starts.bin");
  for (const char* name : {"uint16.idx", "uint16.bin", "int32.idx", "int32.bin"}) {
    const TokensDataset dataset({folder_ / name}, 1);
    ASSERT_EQ(dataset.num_tokens(), std::ssize(tokens) / 4) << name;
    const std::vector<int64_t> read = tokens_in(dataset);
    for (size_t i = 0; i < read.size(); ++i) {
      int32_t token = 0;
      std::memcpy(&token, tokens.data() + 4 * i, sizeof token);
      ASSERT_EQ(read[i], token) << name << ' ' << i;
    }
    ASSERT_EQ(dataset.num_documents(), std::ssize(starts) / 8) << name;
    for (int64_t i = 0; i < *dataset.num_documents(); ++i) {
      EXPECT_EQ(static_cast<uint64_t>(dataset.document_start(i)),
                read_u64(reinterpret_cast<const unsigned char*>(starts.data()) + 8 * i));
    }
  }
  EXPECT_THAT(refused({folder_ / "uint16.idx"}, 100), HasSubstr("uint16.bin: token ")) << "all are read";
  EXPECT_THAT(refused({folder_ / "int64.bin"}),
              AllOf(HasSubstr("the type int64"), HasSubstr("uint16 and int32 are read")));
  EXPECT_THAT(refused({folder_ / "uint16.idx", folder_ / "int32.idx"}), HasSubstr("of the same size"));

  const std::string index = read_file(folder_ / "uint16.idx");
  const auto refused_index = [&](const std::string& content) {
    write("uint16.idx", content);
    return refused({folder_ / "uint16.idx"});
  };
  EXPECT_THAT(refused_index(index.substr(0, 30)), HasSubstr("ends inside its header"));
  EXPECT_THAT(refused_index(index.substr(0, index.size() - 1)), HasSubstr("it is cut off"));
  EXPECT_THAT(refused_index(index + "x"), HasSubstr("1 bytes follow"));
  EXPECT_THAT(refused_index("x" + index), HasSubstr("MMIDIDX"));
  EXPECT_THAT(refused_index(std::string(index).replace(9, 1, "\x02")), HasSubstr("version 2"));
  EXPECT_THAT(refused_index(std::string(index).replace(34, 1, "\x7F")), HasSubstr("sequence 1 does not begin"));
  EXPECT_THAT(refused_index(std::string(index).replace(index.size() - 8, 1, "\xFF")),
              HasSubstr("document index is damaged"));
  write("uint16.idx", index);
  write("uint16.bin", read_file(folder_ / "uint16.bin") + "ab");
  EXPECT_THAT(refused({folder_ / "uint16.bin"}), AllOf(HasSubstr("uint16.bin"), HasSubstr("uint16.idx says")));
  fs::remove(folder_ / "uint16.bin");
  EXPECT_THAT(refused({folder_ / "uint16.idx"}), HasSubstr("there is no uint16.bin beside it"));
}

} // namespace
} // namespace trireme::data
