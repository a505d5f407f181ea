#include <trireme/data/fetch.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/data/fetch_command.h>
#include <trireme/data/fetch_rdata.h>
#include <trireme/data/fetch_sets.h>

#include "temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <random>

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string be32(uint32_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>(value >> shift);
  }
  return out;
}

constexpr uint32_t kAscii = 0x40009;
constexpr uint32_t kUtf8 = 0x8009;
constexpr uint32_t kLatin1 = 0x4009;

std::string charsxp(const std::string& text, uint32_t flags = kAscii) {
  return be32(flags) + be32(static_cast<uint32_t>(text.size())) + text;
}

// An R serialisation (XDR, version 3) of a character vector.
std::string strsxp(const std::vector<std::string>& strings, uint32_t type = 16) {
  std::string out = "X\n" + be32(3) + be32(0x040201) + be32(0x030500) + be32(5) + "UTF-8";
  out += be32(type) + be32(static_cast<uint32_t>(strings.size()));
  for (const std::string& text : strings) {
    out += text;
  }
  return out;
}

std::string block(const std::string& raw, int64_t claimed = -1) {
  uLongf size = compressBound(raw.size());
  std::string packed(size, '\0');
  EXPECT_EQ(
      compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(raw.data()), raw.size()),
      Z_OK);
  packed.resize(size);
  return be32(static_cast<uint32_t>(claimed < 0 ? raw.size() : claimed)) + packed;
}

std::string novel(const std::string& title, int paragraphs) {
  std::vector<std::string> lines = {charsxp(""), charsxp(title), charsxp("")};
  for (int i = 0; i < paragraphs; ++i) {
    lines.push_back(charsxp(concat(title, " paragraph ", i, " begins")));
    lines.push_back(charsxp("and ends."));
    lines.push_back(charsxp(""));
  }
  return block(strsxp(lines));
}

std::string tiny_database() {
  return novel("FIRST NOVEL", 43) + novel("Second: a novel?", 25);
}

class FetchTest : public TemporaryFolderTest {
 protected:
  void SetUp() override { options_.installed_root = folder_ / "no_packages"; }
  // Nothing is found in PATH but what a test puts there, and what it and dpkg-deb need of the system's.
  void use_programs(const std::vector<std::pair<std::string, std::string>>& scripts) {
    const fs::path programs = folder_ / "programs";
    fs::create_directories(programs);
    for (const char* needed : {"sha256sum", "cp", "sh", "dpkg-deb", "tar"}) {
      for (const char* folder : {"/usr/bin", "/bin"}) {
        if (fs::exists(fs::path(folder) / needed) && !fs::exists(programs / needed)) {
          fs::create_symlink(fs::path(folder) / needed, programs / needed);
        }
      }
    }
    for (const auto& [name, script] : scripts) {
      write("programs/" + name, "#!/bin/sh\n" + script);
      fs::permissions(programs / name, fs::perms::owner_all);
    }
    ::setenv("PATH", programs.c_str(), 1);
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    fs::current_path(working_folder_);
  }
  // A package with the tiny novels, as apt-get would bring it.
  fs::path make_package() const {
    const fs::path data = folder_ / "package/usr/lib/R/site-library/janeaustenr/data";
    fs::create_directories(data);
    fs::create_directories(folder_ / "package/DEBIAN");
    write("package/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb", tiny_database());
    write("package/DEBIAN/control",
          "Package: r-cran-janeaustenr\nVersion: 1\nArchitecture: all\nMaintainer: nobody "
          "<nobody@localhost>\nDescription: tiny\n");
    const CommandResult built =
        run_command({"dpkg-deb", "--build", "--root-owner-group", "package", "tiny.deb"}, folder_);
    EXPECT_EQ(built.exit_code, 0) << built.err;
    return folder_ / "tiny.deb";
  }
  int hidden_files() const {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder_ / "out")) {
      count += entry.path().filename().string()[0] == '.';
    }
    return count;
  }

  FetchOptions options_;
  const std::string path_ = std::getenv("PATH");
  const fs::path working_folder_ = fs::current_path();
};

TEST(RdbTest, ReadsStringsOfEveryEncoding) {
  const std::string na = be32(9) + be32(0xffffffff);
  const std::string first = strsxp({charsxp("EMMA"), charsxp(""),
                                    charsxp("\xc2\xa3"
                                            "5",
                                            kUtf8),
                                    charsxp("\xa3"
                                            "5",
                                            kLatin1),
                                    na});
  const std::string version2 =
      "X\n" + be32(2) + be32(0x040201) + be32(0x020300) + be32(16) + be32(1) + charsxp("older");
  EXPECT_THAT(read_rdb(block(first) + block(version2) + block(strsxp({})), "x"),
              ElementsAre(ElementsAre("EMMA", "",
                                      "\xc2\xa3"
                                      "5",
                                      "\xc2\xa3"
                                      "5",
                                      ""),
                          ElementsAre("older"), ElementsAre()));
}

TEST(RdbTest, RefusesWhatItDoesNotUnderstand) {
  const std::string text = charsxp("a");
  const auto complaint = [](const std::string& bytes) { return input_error([&] { read_rdb(bytes, "R.rdb"); }); };
  EXPECT_THAT(complaint(""), HasSubstr("R.rdb is empty"));
  EXPECT_THAT(complaint("\1\2"), AllOf(HasSubstr("R.rdb, block 1 at byte 0"), HasSubstr("length")));
  EXPECT_THAT(complaint(block(strsxp({text}, 19))), HasSubstr("type 19"));
  EXPECT_THAT(complaint(block(strsxp({text}, 16 | 0x200))), HasSubstr("with attributes"));
  EXPECT_THAT(complaint(block(strsxp({text}) + "more")), HasSubstr("4 bytes follow"));
  EXPECT_THAT(complaint(block(strsxp({charsxp("a", 0x2009)}))), HasSubstr("expected a string"));
  EXPECT_THAT(complaint(block(strsxp({charsxp("a", 16)}))), HasSubstr("expected a string"));
  EXPECT_THAT(complaint(block("A\n" + strsxp({text}).substr(2))), HasSubstr("XDR"));
  EXPECT_THAT(complaint(block("X\n" + be32(9) + strsxp({text}).substr(6))), HasSubstr("version 9"));
  EXPECT_THAT(complaint(block(strsxp({text}), 5)), HasSubstr("more than the 5 bytes"));
  EXPECT_THAT(complaint(block(strsxp({text}), 0xffffffff)), HasSubstr("its header states 4294967295"));
  EXPECT_THAT(complaint(block(strsxp({text})) + block("")), HasSubstr("block 2"));
  const std::string head = strsxp({}).substr(0, strsxp({}).size() - 4);
  EXPECT_THAT(complaint(block(head + be32(0x7fffffff) + text)),
              HasSubstr("claims 2147483647 strings, but has room for 1"));
  EXPECT_THAT(complaint(block(head + be32(1) + be32(kAscii) + be32(0x7fffffff) + "a")),
              HasSubstr("2147483647 bytes needed, 1 left"));
}

TEST(RdbTest, DamageIsAlwaysAnInputError) {
  const std::string whole = tiny_database();
  const auto content = read_rdb(whole, "x");
  const size_t second = novel("FIRST NOVEL", 43).size();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(input_error([&] { read_rdb(whole.substr(0, size), "x"); }).empty(), size == second) << size;
  }
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = whole;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    // A bit of the stream may mean nothing; the checksum sees all others.
    auto got = content;
    refused += !input_error([&] { got = read_rdb(damaged, "x"); }).empty();
    EXPECT_EQ(got, content) << "round " << round;
  }
  EXPECT_GT(refused, 3900);
  // Behind the checksum: damage what the stream holds.
  const std::string raw = strsxp({charsxp("one"), charsxp("two"), charsxp("three")});
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = raw;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    if (round % 2 == 0) {
      damaged.resize(random() % damaged.size());
    }
    input_error([&] { read_rdb(block(damaged), "x"); }); // may still be readable; must not crash or throw another error
  }
}

TEST_F(FetchTest, AustenBecomesNovelsAndASplit) {
  const std::string odd = novel("../../etc/passwd", 1) + novel("first NOVEL", 3) + novel("\xe2\x80\x94", 2);
  const auto files = make_austen({write("Rdata.rdb", tiny_database() + odd)});
  std::map<std::string, std::string> content(files.begin(), files.end());
  ASSERT_EQ(content.size(), files.size());
  std::vector<std::string> names;
  std::string all;
  for (const auto& [name, text] : files) {
    names.push_back(name);
    all += name.find("novel") != std::string::npos || name == "etc-passwd.txt" ? text : "";
  }
  EXPECT_THAT(names, ElementsAre("first-novel.txt", "second-a-novel.txt", "etc-passwd.txt", "first-novel-4.txt",
                                 "novel-5.txt", "train.bin", "validation.bin", "train.txt", "validation.txt"));
  EXPECT_THAT(content["second-a-novel.txt"],
              ::testing::StartsWith("\nSecond: a novel?\n\nSecond: a novel? paragraph 0 begins\nand ends.\n\n"));
  const std::string& train = content["train.txt"];
  const std::string& validation = content["validation.txt"];
  EXPECT_EQ(train.size() + validation.size(), all.size());
  // Every line with its number is in exactly one part, and both begin and end between paragraphs.
  for (int i = 0; i < 43; ++i) {
    const std::string line = concat("FIRST NOVEL paragraph ", i, " begins\nand ends.\n");
    EXPECT_EQ((train.find(line) != std::string::npos) + (validation.find(line) != std::string::npos), 1) << i;
  }
  EXPECT_NE(train.find("FIRST NOVEL paragraph 38 begins"), std::string::npos);
  EXPECT_NE(validation.find("FIRST NOVEL paragraph 42 begins"), std::string::npos);
  EXPECT_NE(validation.find("Second: a novel? paragraph 24 begins"), std::string::npos);
  EXPECT_THAT(validation, ::testing::StartsWith("FIRST NOVEL paragraph"));
  EXPECT_THAT(train, HasSubstr("and ends.\n\n\nSecond: a novel?\n"));
  ASSERT_EQ(content["validation.bin"].size(), 2 * validation.size());
  for (size_t i = 0; i < validation.size(); ++i) {
    ASSERT_EQ(content["validation.bin"][2 * i], validation[i]);
    ASSERT_EQ(content["validation.bin"][2 * i + 1], '\0');
  }
}

TEST_F(FetchTest, IsDoneOnceAndRepairsWhatChanged) {
  options_.check = false;
  options_.from = write("any_name.rdb", tiny_database());
  const FetchResult first = fetch("austen", folder_ / "out", options_);
  EXPECT_FALSE(first.already_there);
  EXPECT_EQ(first.folder, folder_ / "out" / "austen");
  ASSERT_EQ(first.files.size(), 6u);
  for (const FetchedFile& file : first.files) {
    EXPECT_EQ(fs::file_size(first.folder / file.name), file.bytes);
  }
  EXPECT_EQ(run_command({"sha256sum", "--check", "--strict", "SHA256SUMS"}, first.folder).exit_code, 0);
  EXPECT_EQ(hidden_files(), 0);

  fs::remove(options_.from); // not needed any more
  EXPECT_TRUE(fetch("austen", folder_ / "out", options_).already_there);

  write("any_name.rdb", tiny_database());
  const std::string good = read_file(first.folder / "train.txt");
  write("out/austen/notes.txt", "the user's own");
  for (const std::string& bad : {good.substr(1), "X" + good.substr(1), std::string()}) {
    fs::remove(first.folder / "train.txt");
    write("out/austen/train.txt", bad);
    EXPECT_FALSE(fetch("austen", folder_ / "out", options_).already_there);
    EXPECT_EQ(read_file(first.folder / "train.txt"), good);
  }
  write("out/austen/SHA256SUMS", "what is this\n");
  EXPECT_FALSE(fetch("austen", folder_ / "out", options_).already_there);
  EXPECT_TRUE(fetch("austen", folder_ / "out", options_).already_there);
  EXPECT_EQ(read_file(first.folder / "notes.txt"), "the user's own");
  EXPECT_EQ(hidden_files(), 0);
}

TEST_F(FetchTest, OtherContentIsRefusedAndChangesNothing) {
  options_.from = write("Rdata.rdb", tiny_database());
  write("out", "");
  fs::remove(folder_ / "out");
  fs::create_directories(folder_ / "out/austen");
  write("out/austen/train.txt", "older");
  const std::string text = input_error([&] { fetch("austen", folder_ / "out", options_); });
  EXPECT_THAT(
      text, AllOf(HasSubstr("emma.txt"), HasSubstr("7c67b5985c6d0de1efaeb5d342d52cb82c38083c40e2295129e30e87ee690ebe"),
                  HasSubstr("no such file"), HasSubstr("--from"), HasSubstr("--no-check")));
  options_.from = write("emma.rdb", novel("EMMA", 9));
  EXPECT_THAT(input_error([&] { fetch("austen", folder_ / "out", options_); }),
              ::testing::ContainsRegex("got [0-9a-f]{64} \\([0-9]+ bytes\\)"));
  EXPECT_EQ(read_file(folder_ / "out/austen/train.txt"), "older");
  EXPECT_FALSE(fs::exists(folder_ / "out/austen/SHA256SUMS"));
  EXPECT_EQ(hidden_files(), 0);
}

TEST_F(FetchTest, FindsTheFilesInFoldersAndSaysWhatIsMissing) {
  options_.check = false;
  fs::create_directories(folder_ / "unpacked/usr/lib/R/site-library/janeaustenr/data");
  write("unpacked/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb", tiny_database());
  for (const char* from : {"unpacked", "unpacked/usr/lib/R/site-library/janeaustenr",
                           "unpacked/usr/lib/R/site-library/janeaustenr/data"}) {
    options_.from = folder_ / from;
    EXPECT_FALSE(fetch("austen", folder_ / "out" / from, options_).already_there) << from;
  }
  options_.from.clear();
  options_.installed_root = folder_ / "unpacked";
  EXPECT_THAT(fetch("austen", folder_ / "out2", options_).source, HasSubstr("installed"));

  const auto complaint = [&](const fs::path& from) {
    options_.from = from;
    return input_error([&] { fetch("austen", folder_ / "out3", options_); });
  };
  EXPECT_THAT(complaint(folder_ / "nowhere"), AllOf(HasSubstr("does not exist"), HasSubstr("Rdata.rdb")));
  EXPECT_THAT(complaint(folder_ / "out"), AllOf(HasSubstr("has no Rdata.rdb"), HasSubstr("r-cran-janeaustenr")));
  EXPECT_THAT(complaint(write("a.rdb", "not R")), HasSubstr("a.rdb"));
  EXPECT_THAT(complaint(write("bad.deb", "not a package")), HasSubstr("cannot unpack"));
  EXPECT_THAT(input_error([&] { fetch("austin", folder_ / "out3"); }), HasSubstr("Did you mean \"austen\""));
  write("file", "");
  fs::create_directories(folder_ / "busy");
  write("busy/austen", "a file");
  EXPECT_THAT(input_error([&] { fetch("austen", folder_ / "busy", options_); }), HasSubstr("is a file"));
  EXPECT_THROW(fetch("austen", folder_ / "file", options_), Error);
}

TEST_F(FetchTest, FashionMnistIsUnpacked) {
  const std::vector<std::string> names = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                          "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
  fs::create_directories(folder_ / "set");
  for (const std::string& name : names) {
    if (name == "t10k-labels-idx1-ubyte") {
      write("set/" + name, "content of " + name); // one that somebody has unpacked already
      continue;
    }
    const gzFile file = gzopen((folder_ / "set" / (name + ".gz")).c_str(), "wb");
    gzputs(file, ("content of " + name).c_str());
    gzclose(file);
  }
  options_.from = folder_ / "set";
  EXPECT_THAT(input_error([&] { fetch("fashion-mnist", folder_ / "out", options_); }),
              HasSubstr("not the expected one"));
  options_.check = false;
  const FetchResult result = fetch("fashion-mnist", folder_ / "out", options_);
  for (const std::string& name : names) {
    EXPECT_EQ(read_file(result.folder / name), "content of " + name);
  }
  fs::remove(folder_ / "set" / "train-labels-idx1-ubyte.gz");
  EXPECT_THAT(input_error([&] { fetch("fashion-mnist", folder_ / "out2", options_); }),
              HasSubstr("dataset-fashion-mnist"));
}

TEST_F(FetchTest, DownloadsAndUnpacksThePackage) {
  try {
    run_command({"dpkg-deb", "--version"}, "/");
  } catch (const CommandMissing&) {
    GTEST_SKIP() << "this system has no dpkg-deb";
  }
  options_.check = false;
  use_programs({{"apt-get", concat("test \"$*\" = '--quiet download r-cran-janeaustenr' && cp '",
                                   make_package().string(), "' r-cran-janeaustenr_1_all.deb")}});
  fs::create_directories(folder_ / "here");
  fs::current_path(folder_ / "here");
  for (const fs::path& out :
       {folder_ / "out", fs::path("out"), fs::path("two/levels"), fs::path("../out 2"), fs::path()}) {
    const FetchResult result = fetch("austen", out, options_);
    EXPECT_EQ(result.source, "package r-cran-janeaustenr, downloaded");
    EXPECT_EQ(result.folder, (out.empty() ? fs::path(".") : out) / "austen");
    EXPECT_EQ(result.files.size(), 6u);
    EXPECT_TRUE(fs::exists(result.folder / "train.txt")) << result.folder;
  }
  EXPECT_EQ(hidden_files(), 0);
  // --from with a package, relative too.
  fs::copy_file(folder_ / "tiny.deb", "mine.deb");
  options_.from = "mine.deb";
  EXPECT_EQ(fetch("austen", "from", options_).files.size(), 6u);
}

TEST_F(FetchTest, SaysWhatToDoWhenThePackageCannotBeHad) {
  const auto complaint = [&] {
    try {
      fetch("fashion-mnist", folder_ / "out", options_);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 1); // not the user's input
      return std::string(error.what());
    }
    return std::string();
  };
  const auto says_what_to_do =
      AllOf(HasSubstr("dataset-fashion-mnist"), HasSubstr("--from PATH"), HasSubstr("apt-get update"));
  use_programs({});
  EXPECT_THAT(complaint(), AllOf(says_what_to_do, HasSubstr("no apt-get")));
  use_programs({{"apt-get", "echo 'E: Unable to locate package dataset-fashion-mnist' >&2; exit 100"}});
  EXPECT_THAT(complaint(), AllOf(says_what_to_do, HasSubstr("E: Unable to locate package"), HasSubstr("100")));
  use_programs({{"apt-get", "exit 0"}});
  EXPECT_THAT(complaint(), says_what_to_do);
  EXPECT_EQ(hidden_files(), 0);
}

TEST_F(FetchTest, TheInstalledPackagesHaveTheKnownHashes) {
  options_.installed_root = "/";
  int found = 0;
  for (const FetchSet& set : fetch_sets()) {
    if (!fs::exists("/" + set.package_folder)) {
      continue;
    }
    ++found;
    EXPECT_EQ(fetch(set.data.name, folder_ / "out", options_).files.size(), set.known.size());
    EXPECT_TRUE(fetch(set.data.name, folder_ / "out").already_there);
  }
  if (found == 0) {
    GTEST_SKIP() << "neither r-cran-janeaustenr nor dataset-fashion-mnist is installed";
  }
}

TEST(RunCommandTest, KeepsArgumentsOutputsAndStatus) {
  const CommandResult echo = run_command({"printf", "%s|", "two words", "$HOME", "'; exit 7 #", ""}, "/");
  EXPECT_EQ(echo.out, "two words|$HOME|'; exit 7 #||");
  EXPECT_EQ(echo.exit_code, 0);
  // More than two pipes hold: neither may block the other.
  const CommandResult both =
      run_command({"sh", "-c", "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero; exit 3"}, "/");
  EXPECT_EQ(both.out.size(), 300000u);
  EXPECT_EQ(both.err.size(), 300000u);
  EXPECT_EQ(both.exit_code, 3);
  EXPECT_EQ(run_command({"sh", "-c", "kill -9 $$"}, "/").exit_code, 137);
  EXPECT_EQ(run_command({"pwd"}, "/usr").out, "/usr\n");
  EXPECT_EQ(run_command({"cat"}, "/").out, ""); // nothing to read from
  EXPECT_THROW(run_command({"no-such-program-of-trireme"}, "/"), CommandMissing);
  EXPECT_THROW(run_command({"pwd"}, "/no/such/folder"), Error);
}

} // namespace
} // namespace trireme::data
