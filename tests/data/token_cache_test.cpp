// The cache of tokens: what encode() gives for the whole text, made once, and believed only where it is right.
#include <trireme/data/token_cache/text_cache.h>

#include "pack.h"
#include "temporary_folder.h"

#include <tests/support/folders.h>
#include <tests/support/made_once.h>
#include <trireme/base/file.h>
#include <trireme/data/fetch_command.h>
#include <trireme/data/token_files/token_files.h>
#include <trireme/data/tokenize/input_stamp.h>

#include <gmock/gmock.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <random>
#include <set>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string words(size_t bytes, unsigned seed) {
  constexpr const char* kEnds[] = {" ", "\n", ", ", "\xC3\xA4 ", "\xE3\x80\x82"};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) {
    for (size_t i = 1 + random() % 9; i > 0; --i) {
      text += static_cast<char>('a' + random() % 6);
    }
    text += kEnds[random() % std::size(kEnds)];
  }
  return text;
}

std::vector<int32_t> ids_of(const CachedText::Split& split) {
  std::vector<int32_t> ids;
  for (const TokenFile& file : open_token_files(split.shards, 0)) {
    const unsigned char* at = file.map->bytes().data() + file.begin;
    for (int64_t i = 0; i < file.num_tokens; ++i, at += file.token_bytes) {
      ids.push_back(at[0] | at[1] << 8 | (file.token_bytes == 4 ? at[2] << 16 : 0));
    }
  }
  EXPECT_EQ(split.tokens, std::ssize(ids));
  return ids;
}

// Ends its process by SIGKILL in the middle.
class Killer : public tokenizer::Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    if (++calls_ == 7) {
      ::kill(::getpid(), SIGKILL);
    }
    return std::vector<int32_t>(text.size(), 1);
  }
  std::string decode(std::span<const int32_t>, bool) const override { return ""; }
  int64_t vocab_size() const override { return 256; }
  std::string describe() const override { return "killer"; }

 private:
  mutable std::atomic<int> calls_{0};
};

class TokenCacheTest : public TemporaryFolderTest {
 protected:
  TokenCache cache() const { return TokenCache(folder_ / "cache"); }
  // Counts how often it is asked for a tokenizer: once for each time that tokens are made.
  MakeTokenizer tokenizer(const TextFiles& texts) {
    return [this, name = texts.tokenizer] {
      ++made_;
      return tokenizer::make_tokenizer(name);
    };
  }
  CachedText get(const TextFiles& texts) { return find_or_make_text(cache(), texts, tokenizer(texts), 2); }
  fs::path entry() const {
    fs::path found;
    for (const auto& item : fs::directory_iterator(folder_ / "cache")) {
      found = item.path().extension() == ".json" ? item.path() : found;
    }
    return found;
  }
  std::vector<fs::path> folders() const {
    std::vector<fs::path> found;
    for (const auto& item : fs::directory_iterator(folder_ / "cache")) {
      if (item.is_directory()) {
        found.push_back(item.path());
      }
    }
    return found;
  }
  // So that its times are believed.
  static void make_old(const fs::path& file, int64_t seconds = 100) {
    const timespec times[] = {{::time(nullptr) - seconds, 0}, {::time(nullptr) - seconds, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  }
  int made_ = 0;
};

// PyPI tokenizers' ids of a text that is several blocks long; where it is divided, our own of both parts.
TEST_F(TokenCacheTest, HasTheTokensOfTheWholeText) {
  const fs::path reference = test::made_once("reference_documents", [](const fs::path& folder) {
    const CommandResult result = run_command(
        {test::python(), test::source_dir() + "/tests/data/reference_tokens.py", "documents", folder.string()}, folder);
    ASSERT_EQ(result.exit_code, 0) << "PyPI tokenizers is needed (requirements-test.txt):\n" << result.err;
  });
  const std::string novel = read_file(reference / "novel.txt");
  const size_t half = novel.find('\n', novel.size() / 2);
  const std::vector<fs::path> files = {write("a.txt", "\xEF\xBB\xBF" + novel.substr(0, half)),
                                       write("b.txt.gz", pack(novel.substr(half)))};
  for (const char* name : {"gpt2", "llama2", "bert", "t5"}) {
    const std::string spec = (reference / name).string();
    int32_t count = 0;
    std::memcpy(&count, read_file(reference / name / "counts.bin").data(), sizeof count);
    std::vector<int32_t> expected(static_cast<size_t>(count));
    std::memcpy(expected.data(), read_file(reference / name / "ids.bin").data(), expected.size() * sizeof(int32_t));
    EXPECT_EQ(ids_of(get({.train = files, .tokenizer = spec}).train) == expected, true) << name;
  }
  for (const double fraction : {0.1, 0.33333}) {
    const TextFiles texts{.train = files, .validation_fraction = fraction, .tokenizer = (reference / "gpt2").string()};
    size_t end = novel.size() - static_cast<size_t>(static_cast<double>(novel.size()) * fraction);
    while ((static_cast<unsigned char>(novel[end]) & 0xC0) == 0x80) {
      ++end;
    }
    const auto known = tokenizer::make_tokenizer(texts.tokenizer);
    const CachedText made = get(texts);
    ASSERT_TRUE(made.validation);
    EXPECT_EQ(ids_of(made.train) == known->encode(novel.substr(0, end)), true) << fraction;
    EXPECT_EQ(ids_of(*made.validation) == known->encode(novel.substr(end)), true) << fraction;
    TextBytes bytes;
    bytes.add(std::string_view(novel).substr(end));
    EXPECT_EQ(made.validation->bytes, bytes);
    EXPECT_EQ(made.train.bytes.total, static_cast<int64_t>(end));
  }
}

TEST_F(TokenCacheTest, IsMadeOnceAndAgainForOtherTexts) {
  TextFiles texts{.train = {write("a.txt", words(3000, 1))}, .validation = {write("b.txt", "held out text")}};
  make_old(texts.train[0]);
  const auto first = ids_of(get(texts).train);
  EXPECT_EQ(ids_of(get(texts).train), first);
  EXPECT_EQ(made_, 1);
  EXPECT_TRUE(find_text(cache(), texts));

  make_old(texts.train[0], 50); // touched: the same content
  EXPECT_TRUE(find_text(cache(), texts));
  get(texts);
  EXPECT_EQ(made_, 1);

  std::string other = read_file(texts.train[0]);
  other[1234] = other[1234] == 'x' ? 'y' : 'x'; // the same size, and a moment later the same time
  write("a.txt", other);
  make_old(texts.train[0], 50);
  EXPECT_FALSE(find_text(cache(), texts));
  EXPECT_EQ(ids_of(get(texts).train), tokenizer::make_tokenizer("bytes")->encode(other));
  EXPECT_EQ(made_, 2);
  EXPECT_EQ(folders().size(), 1U); // the old shards are gone

  texts.validation_fraction = 0.5; // of no effect beside validation files
  EXPECT_TRUE(find_text(cache(), texts));
  texts.validation.clear();
  EXPECT_FALSE(find_text(cache(), texts));
  get(texts);
  EXPECT_EQ(made_, 3);
  EXPECT_EQ(folders().size(), 2U);
}

TEST_F(TokenCacheTest, DamagedFilesAreMadeAgain) {
  const TextFiles texts{.train = {write("a.txt", words(3000, 1))}, .validation_fraction = 0.2};
  const auto right = ids_of(get(texts).train);
  const std::string json = read_file(entry());
  const auto shard = [&] { return folders().at(0) / "train" / "tokens-00000.bin"; };
  const auto replace = [](const fs::path& file, const std::string& content) {
    fs::remove(file); // what is mapped stays
    write_file_atomically(file, content);
  };
  const std::vector<std::function<void()>> damages = {
      [&] { replace(entry(), json.substr(0, json.size() / 2)); },
      [&] { replace(entry(), ""); },
      [&] { replace(entry(), json.substr(0, 400) + (json[400] == '1' ? '2' : '1') + json.substr(401)); },
      [&] { replace(shard(), read_file(shard()).substr(0, 1000)); },
      [&] { replace(shard(), ""); },
      [&] { fs::remove(shard()); },
      [&] {
        std::string bytes = read_file(shard());
        bytes[500] ^= 1;
        replace(shard(), bytes);
      },
      [&] { fs::remove_all(folders().at(0)); },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    damages[i]();
    EXPECT_EQ(ids_of(get(texts).train), right) << i;
    EXPECT_EQ(made_, static_cast<int>(i) + 2);
    EXPECT_EQ(folders().size(), 1U) << i;
  }
}

TEST_F(TokenCacheTest, AKilledWriterLeavesNothingThatIsBelieved) {
  const TextFiles texts{.train = {write("a.txt", words(2'000'000, 1))}};
  const pid_t child = ::fork();
  if (child == 0) {
    find_or_make_text(cache(), texts, [] { return std::make_shared<Killer>(); }, 1);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(folders().size(), 1U);
  const fs::path left = folders().at(0);
  EXPECT_FALSE(find_text(cache(), texts));
  EXPECT_EQ(get(texts).train.tokens, static_cast<int64_t>(fs::file_size(texts.train[0])));
  EXPECT_EQ(made_, 1);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_EQ(folders().size(), 1U);
}

TEST_F(TokenCacheTest, ProcessesThatBeginAtOnceTokenizeOnce) {
  const TextFiles texts{.train = {write("a.txt", words(400'000, 1))}};
  const fs::path log = write("log", "");
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto make = [&] {
        const Descriptor file(::open(log.c_str(), O_WRONLY | O_APPEND));
        EXPECT_EQ(::write(file.get(), "x", 1), 1);
        return tokenizer::make_tokenizer("bytes");
      };
      ::_exit(find_or_make_text(cache(), texts, make, 1).train.tokens > 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(read_file(log), "x");
}

// A process that hangs while it holds the lock.
TEST_F(TokenCacheTest, WaitsNoLongerThanItMay) {
  const TextFiles texts{.train = {write("a.txt", words(3000, 1))}};
  get(texts);
  const fs::path lock = fs::path(entry()).replace_extension(".lock");
  const Descriptor held(::open(lock.c_str(), O_RDWR));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  fs::remove(entry());
  const TokenCache impatient(folder_ / "cache", std::chrono::seconds(0));
  EXPECT_GT(find_or_make_text(impatient, texts, tokenizer(texts), 1).train.tokens, 0);
  EXPECT_EQ(made_, 2);
}

// Nobody answers for a process that hangs, but the one that waits can be told to end.
TEST_F(TokenCacheTest, AWaitThatIsAskedToEndSaysForWhom) {
  const TextFiles texts{.train = {write("a.txt", words(3000, 1))}};
  get(texts);
  const fs::path lock = fs::path(entry()).replace_extension(".lock");
  const Descriptor held(::open(lock.c_str(), O_RDWR));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  fs::remove(entry());
  int asked = 0;
  const TokenCache cache(folder_ / "cache", TokenCache::kMostWait, [&] { return ++asked == 3; });
  std::string said;
  try {
    find_or_make_text(cache, texts, tokenizer(texts), 1);
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT_THAT(said, HasSubstr(concat("asked to end while waiting for process ", ::getpid(), " on ")));
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(made_, 1);
}

// While it reads, counts bytes or tokenizes.
TEST_F(TokenCacheTest, MakingThatIsAskedToEndLeavesNothing) {
  const TextFiles texts{.train = {write("a.txt", words(3 << 20, 1))}, .validation_fraction = 0.5};
  std::set<std::string> all;
  for (const int most : {1, 8, 64}) {
    int asked = 0;
    const TokenCache cache(folder_ / "cache", TokenCache::kMostWait, [&] { return ++asked >= most; });
    try {
      find_or_make_text(cache, texts, tokenizer(texts), 2);
      ADD_FAILURE() << "made, asked " << asked << " times";
    } catch (const Error& error) {
      all.insert(error.what());
    }
    EXPECT_EQ(asked, most);
    EXPECT_TRUE(folders().empty());
    EXPECT_TRUE(entry().empty());
  }
  EXPECT_THAT(all, testing::ElementsAre(HasSubstr("asked to end while counting the bytes of the text"),
                                        HasSubstr("asked to end while reading the text"),
                                        HasSubstr("asked to end while tokenizing")));
  EXPECT_FALSE(get(texts).train.shards.empty()) << "no lock is left";
}

TEST_F(TokenCacheTest, ALinkIsNoLock) {
  const TextFiles texts{.train = {write("a.txt", words(3000, 1))}};
  get(texts);
  const fs::path lock = fs::path(entry()).replace_extension(".lock");
  fs::remove(entry());
  fs::remove(lock);
  fs::create_symlink(write("elsewhere", "kept"), lock);
  EXPECT_THAT([&] { get(texts); }, testing::ThrowsMessage<Error>(HasSubstr("is a symbolic link")));
  EXPECT_EQ(read_file(folder_ / "elsewhere"), "kept");
}

TEST_F(TokenCacheTest, ATextThatChangesWhileItIsReadIsRefused) {
  const TextFiles texts{.train = {write("a.txt", words(3000, 1))}};
  const auto changes = [&] {
    write("a.txt", words(3000, 2));
    return tokenizer::make_tokenizer("bytes");
  };
  EXPECT_THAT([&] { find_or_make_text(cache(), texts, changes, 1); },
              testing::ThrowsMessage<ChangedInput>(HasSubstr("a.txt has changed while it was read")));
  EXPECT_EQ(folders().size(), 0U);
}

TEST_F(TokenCacheTest, ShardsInUseStay) {
  const TextFiles texts{.train = {write("a.txt", words(3000, 1))}};
  std::optional<CachedText> used = get(texts);
  const fs::path shard = used->train.shards.at(0);
  write("a.txt", "another text");
  get(texts);
  EXPECT_TRUE(fs::exists(shard));
  used.reset();
  write("a.txt", "yet another");
  get(texts);
  EXPECT_FALSE(fs::exists(shard));
  EXPECT_EQ(folders().size(), 1U);
}

TEST_F(TokenCacheTest, AFolderThatCannotBeWrittenIsAnError) {
  const TextFiles texts{.train = {write("a.txt", "some text")}};
  const TokenCache nowhere(write("file", "") / "cache");
  EXPECT_FALSE(find_text(nowhere, texts));
  EXPECT_THROW(find_or_make_text(nowhere, texts, tokenizer(texts), 1), Error);
  EXPECT_EQ(made_, 0);
  EXPECT_THAT(input_error([&] { get({.train = {folder_ / "absent"}}); }), HasSubstr("absent"));
  EXPECT_THAT(input_error([&] { get({.train = {write("empty", "")}}); }), HasSubstr("is empty"));
  EXPECT_EQ(folders().size(), 0U); // what was begun is removed
}

// The entry is the last file written: a limit on its size stands for a full disk.
TEST_F(TokenCacheTest, AFullDiskLeavesNothing) {
  const TextFiles texts{.train = {write("a.txt", words(300'000, 1))}};
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_IGN);
    try {
      get(texts);
    } catch (const InputError&) {
      ::_exit(2);
    } catch (const Error&) {
      ::_exit(folders().empty() && entry().empty() ? 0 : 3);
    }
    ::_exit(4);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

} // namespace
} // namespace trireme::data
