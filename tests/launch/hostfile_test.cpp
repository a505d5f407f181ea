#include <trireme/launch/hostfile.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace trireme::launch {
namespace {

using testing::HasSubstr;

std::string complaint(const std::string& text) {
  try {
    parse_hostfile(text, "hosts");
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

TEST(HostfileTest, ReadsTheFormsThatOthersWrite) {
  const auto hosts = parse_hostfile(
      "# our cluster\nnode1 slots=4 # first\n\n  node2:3\r\nnode3\nuser@node4 slots=2 max_slots=8\n"
      "ns1\tslots=2 address=10.0.0.1\n[fe80::1]:2\n2001:db8::7",
      "hosts");
  const struct {
    const char* name;
    int slots;
    const char* address;
  } expected[] = {{"node1", 4, "node1"},
                  {"node2", 3, "node2"},
                  {"node3", 1, "node3"},
                  {"user@node4", 2, "node4"},
                  {"ns1", 2, "10.0.0.1"},
                  {"fe80::1", 2, "fe80::1"},
                  {"2001:db8::7", 1, "2001:db8::7"}};
  ASSERT_EQ(hosts.size(), std::size(expected));
  for (size_t i = 0; i < hosts.size(); ++i) {
    EXPECT_EQ(hosts[i].name, expected[i].name);
    EXPECT_EQ(hosts[i].slots, expected[i].slots) << hosts[i].name;
    EXPECT_EQ(hosts[i].address, expected[i].address);
  }
}

TEST(HostfileTest, NamesFileAndLineOfAMistake) {
  EXPECT_THAT(
      complaint("node1 slots=4\nnode2 slot=4\n"),
      testing::AllOf(HasSubstr("hosts:2"), HasSubstr("\"slot\" is unknown"), HasSubstr("Did you mean \"slots\"?")));
  EXPECT_THAT(complaint("node1 slots=0"), HasSubstr("\"0\" is not a number of ranks"));
  EXPECT_THAT(complaint("node1 slots=4x"), HasSubstr("\"4x\" is not a number"));
  EXPECT_THAT(complaint("node1 slots=99999999999"), HasSubstr("is not a number"));
  EXPECT_THAT(complaint("node1:"), HasSubstr("\"\" is not a number"));
  EXPECT_THAT(complaint("node1 4"), HasSubstr("\"4\" is neither a host nor KEY=VALUE"));
  EXPECT_THAT(complaint("node1 address="), HasSubstr("\"address\" is unknown or has no value. Did you mean"));
  EXPECT_THAT(complaint("a\nb\na slots=2"),
              testing::AllOf(HasSubstr("hosts:3"), HasSubstr("the host a is given twice")));
  EXPECT_THAT(complaint("# nothing\n\n"), HasSubstr("the hostfile has no host"));
  EXPECT_THAT(complaint("[fe80::1"), HasSubstr("no matching bracket"));
  EXPECT_THAT(complaint("no\xff"
                        "de"),
              HasSubstr("is not a host name"));
}

// As editors and shells of Windows write them.
TEST(HostfileTest, AFileIsUtf8WithoutItsMark) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / concat("trireme_hostfile_", ::getpid());
  const auto write = [&](std::string_view content) { std::ofstream(file, std::ios::binary) << content; };
  write("\xEF\xBB\xBFnode1 slots=4\r\nnode2\r\n");
  const auto hosts = read_hostfile(file);
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].name, "node1");
  EXPECT_EQ(hosts[0].slots, 4);
  write("\xEF\xBB\xBF# only a comment\nnode1\n");
  EXPECT_EQ(read_hostfile(file).size(), 1u);
  write(
      {"\xFF\xFEn\0"
       "1\0\n\0",
       8});
  try {
    read_hostfile(file);
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(file.string() + " is UTF-16"),
                                             HasSubstr("iconv -f UTF-16 -t UTF-8 " + file.string())));
  }
  std::filesystem::remove(file);
}

// Ranks would listen on all networks of the host.
TEST(HostfileTest, EveryAddressIsNone) {
  for (const std::string line : {"node1 address=0.0.0.0", "node1 slots=2 address=::", "node1 address=*",
                                 "node1 address=[::]", "node1 address=0", "0.0.0.0:2", "[::]:2", "::"}) {
    EXPECT_THAT(complaint("node0\n" + line),
                testing::AllOf(HasSubstr("hosts:2"), HasSubstr("stands for all addresses of the host")))
        << line;
  }
}

// A host name becomes an argument of ssh.
TEST(HostfileTest, AHostCannotBeAnOptionOrACommand) {
  EXPECT_THAT(complaint("-oProxyCommand=evil slots=2"), HasSubstr("is not a host name"));
  EXPECT_THAT(complaint("a;reboot"), HasSubstr("is not a host name"));
  EXPECT_THAT(complaint("$(id)"), HasSubstr("is not a host name"));
}

TEST(HostfileTest, KnowsThisMachine) {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  EXPECT_TRUE(is_this_machine("localhost"));
  EXPECT_TRUE(is_this_machine("127.0.0.1"));
  EXPECT_TRUE(is_this_machine(name));
  EXPECT_FALSE(is_this_machine("127.0.0.2"))
      << "reachable, but no address of an interface: tests use it as another host";
  EXPECT_FALSE(is_this_machine("192.0.2.1"));
}

} // namespace
} // namespace trireme::launch
