// Files of tokens that are not what they are read as, and the check of all tokens.
#include <trireme/data/make_dataset.h>
#include <trireme/data/token_scan.h>
#include <trireme/data/tokens.h>

#include "pack.h"
#include "temporary_folder.h"

#include <gmock/gmock.h>

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Little-endian, `bytes` each.
std::string tokens_of(const std::vector<int64_t>& tokens, size_t bytes) {
  std::string content;
  for (const int64_t token : tokens) {
    for (size_t i = 0; i < bytes; ++i) {
      content += static_cast<char>(token >> (8 * i) & 0xFF);
    }
  }
  return content;
}

std::vector<int64_t> random_tokens(size_t count, int64_t vocab_size, unsigned seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> tokens(count);
  for (int64_t& token : tokens) {
    token = static_cast<int64_t>(random() % static_cast<uint64_t>(vocab_size));
  }
  return tokens;
}

int64_t suggested(const std::string& content) {
  return suggested_token_bytes({reinterpret_cast<const unsigned char*>(content.data()), content.size()});
}

class TokenWidthTest : public TemporaryFolderTest {
 protected:
  std::string refused(const std::string& content, int64_t vocab_size, int64_t token_bytes = 0) const {
    const auto file = write("t.bin", content);
    return input_error([&] { TokensDataset({file}, 8, vocab_size, token_bytes).check(); });
  }
};

TEST_F(TokenWidthTest, WiderTokensAreKnownByTheirUpperHalves) {
  for (const int64_t vocab_size :
       {4, 64, 256, 50257, 65536, 128256, 1000000}) { // letters of DNA, bytes, GPT-2's, Llama 3's
    for (const size_t count : {100, 401, 100000}) {
      const std::vector<int64_t> tokens = random_tokens(count, vocab_size);
      EXPECT_EQ(suggested(tokens_of(tokens, 4)), 4) << vocab_size << ' ' << count;
      EXPECT_EQ(suggested(tokens_of(tokens, 8)), 8) << vocab_size << ' ' << count;
      EXPECT_EQ(suggested(tokens_of(tokens, 4) + "ab"), 4) << "cut off; " << vocab_size << ' ' << count;
      EXPECT_EQ(suggested(tokens_of(tokens, 8) + "abcdef"), 8) << "cut off; " << vocab_size << ' ' << count;
      if (vocab_size <= 65536) {
        EXPECT_EQ(suggested(tokens_of(tokens, 2)), 2) << vocab_size << ' ' << count;
      }
    }
  }
}

TEST_F(TokenWidthTest, TokensOf16BitsWithManyZerosAreTaken) {
  EXPECT_EQ(suggested(tokens_of(std::vector<int64_t>(5000, 0), 2)), 2) << "padding alone";
  EXPECT_EQ(suggested(tokens_of(std::vector<int64_t>(5000, 7), 2)), 2);
  EXPECT_EQ(suggested(""), 2);
  for (unsigned seed = 0; seed < 200; ++seed) { // mostly padding, in any order
    std::mt19937 random(seed);
    std::vector<int64_t> tokens(4000, 0);
    for (int64_t& token : tokens) {
      token = random() % 50 == 0 ? 1 + static_cast<int64_t>(random() % 50000) : 0;
    }
    EXPECT_EQ(suggested(tokens_of(tokens, 2)), 2) << seed;
  }
  std::vector<int64_t> documents; // short ones, padded to a length
  for (int i = 0; i < 100; ++i) {
    const std::vector<int64_t> words = random_tokens(3 + static_cast<size_t>(i) % 5, 50257, static_cast<unsigned>(i));
    documents.insert(documents.end(), words.begin(), words.end());
    documents.resize(static_cast<size_t>(i + 1) * 128, 0);
  }
  EXPECT_EQ(suggested(tokens_of(documents, 2)), 2);
  EXPECT_EQ(suggested(tokens_of(random_tokens(20, 50257), 4)), 2) << "too few to say";
}

TEST_F(TokenWidthTest, AFileThatIsNot16BitIsRefusedWithWhatToDo) {
  const std::vector<int64_t> tokens = random_tokens(401, 64);
  EXPECT_EQ(refused(tokens_of(tokens, 2), 64), "");
  EXPECT_THAT(refused(tokens_of(tokens, 4), 64),
              AllOf(HasSubstr("t.bin: every second 16-bit value is 0"), HasSubstr("32-bit"),
                    HasSubstr("data.token_bytes to 4"), HasSubstr("to 2")));
  EXPECT_THAT(refused(tokens_of(tokens, 8), 64),
              AllOf(HasSubstr("three of four"), HasSubstr("64-bit"), HasSubstr("np.int64")));
  EXPECT_THAT(refused("\x93NUMPY\x01" + std::string(121, ' ') + tokens_of(tokens, 2), 64),
              AllOf(HasSubstr("header of a .npy file"), HasSubstr("tofile")));
  EXPECT_THAT(refused(pack(tokens_of(tokens, 2)), 0), AllOf(HasSubstr("packed with gzip"), HasSubstr("Unpack it")));
  EXPECT_THAT(refused(tokens_of(tokens, 4) + "ab", 64), HasSubstr("32-bit")) << "cut off";
  EXPECT_THAT(refused(tokens_of(tokens, 4) + "ab", 64, 4), HasSubstr("1606 bytes long, not a multiple of 4"));
  // Said, it is not guessed.
  EXPECT_EQ(refused(tokens_of(tokens, 4), 64, 2), "");
  EXPECT_EQ(refused(tokens_of(tokens, 4), 64, 4), "");
  EXPECT_EQ(refused(tokens_of(tokens, 8), 64, 4), "");
  EXPECT_THAT(refused(tokens_of(tokens, 2), 64, 4), HasSubstr("802 bytes long, not a multiple of 4"))
      << "401 tokens of 2 bytes";
  EXPECT_THAT(refused(tokens_of(random_tokens(400, 64), 2), 64, 4), HasSubstr("remove data.token_bytes"));
  EXPECT_THAT(refused(tokens_of(tokens, 2), 64, 3), HasSubstr("must be 2 or 4"));
}

TEST_F(TokenWidthTest, AVocabularyBeyond16BitsNeedsOtherTokens) {
  const std::vector<int64_t> tokens = random_tokens(401, 65536);
  EXPECT_EQ(refused(tokens_of(tokens, 2), 65536), "");
  EXPECT_THAT(refused(tokens_of(tokens, 2), 65537), AllOf(HasSubstr("16-bit tokens, which are below 65536"),
                                                          HasSubstr("has 65537"), HasSubstr("data.token_bytes to 4")));
  EXPECT_EQ(refused(tokens_of(tokens, 2), 65600, 2), "") << "padded for tensor parallelism";
  EXPECT_EQ(refused(tokens_of(random_tokens(401, 128256), 4), 128256, 4), "");
}

TEST_F(TokenWidthTest, TokensOf32BitsAreRead) {
  const std::vector<int64_t> tokens = {1, 65536, 128255, 4294967295, 7, 0, 9};
  const TokensDataset dataset(
      {write("a.bin", tokens_of({1, 65536, 128255}, 4)), write("b.bin", tokens_of({4294967295, 7, 0, 9}, 4))}, 6, 0, 4);
  ASSERT_EQ(dataset.size(), 1);
  EXPECT_EQ(dataset.num_tokens(), 7);
  const std::vector<int64_t> first{0};
  const Batch batch = dataset.get(first);
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(batch.input()[0][i].item<int64_t>(), tokens[static_cast<size_t>(i)]);
    EXPECT_EQ(batch.target()[0][i].item<int64_t>(), tokens[static_cast<size_t>(i) + 1]);
  }
}

TEST_F(TokenWidthTest, LargestTokenLooksAtEveryPlace) {
  for (const int64_t bytes : {2, 4}) {
    for (size_t count = 1; count < 300; ++count) {
      const std::vector<int64_t> tokens = random_tokens(count, int64_t{1} << (8 * bytes), static_cast<unsigned>(count));
      const std::string content = "x" + tokens_of(tokens, static_cast<size_t>(bytes)); // at an odd address
      EXPECT_EQ(largest_token({reinterpret_cast<const unsigned char*>(content.data()) + 1, content.size() - 1}, bytes),
                *std::max_element(tokens.begin(), tokens.end()));
    }
    std::string zeros(300 * static_cast<size_t>(bytes), '\0');
    for (size_t place = 0; place < 300; ++place) {
      std::string content = zeros;
      content[place * static_cast<size_t>(bytes)] = 1;
      EXPECT_EQ(largest_token({reinterpret_cast<const unsigned char*>(content.data()), content.size()}, bytes), 1)
          << place;
    }
  }
}

// Several blocks and files, at the ends of each: every share finds its own, and all together all.
TEST_F(TokenWidthTest, EveryTokenIsInOneShareOfTheCheck) {
  constexpr size_t kBlock = (8 << 20) / 2;
  const std::vector<size_t> lengths = {3, 2 * kBlock + 5, kBlock, 1};
  std::vector<std::string> contents;
  std::vector<std::filesystem::path> files;
  for (size_t i = 0; i < lengths.size(); ++i) {
    contents.emplace_back(2 * lengths[i], '\1'); // token 257
    files.push_back(write(concat(i, ".bin"), contents.back()));
  }
  const auto complaints = [&](int64_t parts) {
    std::vector<std::string> found;
    const TokensDataset dataset(files, 8, /*vocab_size=*/300);
    for (int64_t part = 0; part < parts; ++part) {
      if (const std::string said = input_error([&] { dataset.check({part, parts}); }); !said.empty()) {
        found.push_back(said);
      }
    }
    return found;
  };
  EXPECT_THAT(complaints(3), testing::IsEmpty());
  for (const auto& [file, position] : {std::pair<size_t, size_t>(0, 0),
                                       {0, 2},
                                       {1, 0},
                                       {1, kBlock - 1},
                                       {1, kBlock},
                                       {1, 2 * kBlock + 4},
                                       {2, kBlock - 1},
                                       {3, 0}}) {
    std::string content = contents[file];
    content[2 * position + 1] = 2;
    content[2 * position] = 0; // token 512
    write(concat(file, ".bin"), content);
    for (const int64_t parts : {1, 2, 3, 16}) {
      EXPECT_THAT(
          complaints(parts),
          testing::ElementsAre(HasSubstr(concat(file, ".bin: token ", position, " is 512, the vocabulary has 300"))))
          << parts;
    }
    write(concat(file, ".bin"), contents[file]);
  }
}

// By the pages that this process has touched.
TEST_F(TokenWidthTest, AFileIsReadOnceUnlessItChanges) {
  const auto file = write("a.bin", std::string(64 << 20, '\1')); // token 257
  const auto check = [&](int64_t vocab_size) {
    return input_error([&] { TokensDataset({file}, 8, vocab_size).check(); });
  };
  const auto pages = [&](int64_t vocab_size) {
    struct rusage before{};
    ::getrusage(RUSAGE_SELF, &before);
    EXPECT_EQ(check(vocab_size), "");
    struct rusage after{};
    ::getrusage(RUSAGE_SELF, &after);
    return after.ru_minflt + after.ru_majflt - before.ru_minflt - before.ru_majflt;
  };
  const auto read = pages(300);
  std::this_thread::sleep_for(std::chrono::milliseconds(
      3100)); // what has just been written is not kept: it may be written again in the same tick of the clock
  EXPECT_EQ(check(300), "");
  constexpr long kFewest = (64 << 20) / (2 << 20); // of the largest pages
  EXPECT_LE(pages(300) + kFewest / 2, read);
  EXPECT_LE(pages(400) + kFewest / 2, read) << "what is known serves every vocabulary";
  EXPECT_THAT(check(200), HasSubstr("token 0 is 257, the vocabulary has 200"));
  std::string changed(64 << 20, '\1');
  changed.back() = 2; // token 513
  write("a.bin", changed);
  EXPECT_THAT(check(300), HasSubstr("token 33554431 is 513"));
}

TEST_F(TokenWidthTest, TrainingTokensAreCheckedBeforeTheFirstStep) {
  std::vector<int64_t> tokens = random_tokens(1000, 50);
  DataOptions options{.kind = DataOptions::Kind::tokens,
                      .train = {write("train.bin", tokens_of(tokens, 2))},
                      .sequence_length = 8,
                      .vocab_size = 50};
  EXPECT_EQ(input_error([&] { make_datasets(options); }), "");
  tokens[998] = 50;
  write("train.bin", tokens_of(tokens, 2));
  EXPECT_THAT(input_error([&] { make_datasets(options); }),
              HasSubstr("train.bin: token 998 is 50, the vocabulary has 50 (0 to 49)"));
  options.token_bytes = 4;
  EXPECT_THAT(input_error([&] { make_datasets(options); }), HasSubstr("remove data.token_bytes"));
  options.vocab_size = 100000;
  options.token_bytes = 0;
  EXPECT_THAT(input_error([&] { make_datasets(options); }), HasSubstr("has 100000"));
}

} // namespace
} // namespace trireme::data
