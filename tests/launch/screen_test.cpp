#include <trireme/launch/descriptor.h>
#include <trireme/launch/screen.h>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

namespace trireme::launch {
namespace {

std::string read_all(int fd) {
  std::string text;
  char buffer[8192];
  ssize_t got = 0;
  while ((got = ::read(fd, buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

TEST(OutletTest, KeepsWhatTheReaderDoesNotTake) {
  const Pipe pipe = make_pipe();
  set_nonblocking(pipe.read.get());
  Outlet outlet(pipe.write.get());
  std::string sent;
  for (int i = 0; i < 4000; ++i) {
    const std::string line = "line " + std::to_string(i) + std::string(100, '.') + "\n";
    sent += line;
    outlet.write(line);
  }
  EXPECT_TRUE(outlet.pending());
  EXPECT_TRUE(outlet.full());
  std::string received;
  for (int rounds = 0; outlet.pending() && rounds < 1000; ++rounds) {
    received += read_all(pipe.read.get());
    outlet.flush();
  }
  received += read_all(pipe.read.get());
  EXPECT_FALSE(outlet.full());
  EXPECT_EQ(received, sent);
}

TEST(OutletTest, GoesOnWithoutAReader) {
  struct sigaction before{};
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  Pipe pipe = make_pipe();
  pipe.read.close();
  Outlet outlet(pipe.write.get());
  outlet.write("lost\n");
  outlet.write(std::string(1 << 20, 'x'));
  EXPECT_FALSE(outlet.pending());
  EXPECT_FALSE(outlet.full());
  ::sigaction(SIGPIPE, &before, nullptr);
}

TEST(OutletTest, GoesOnWhenTheDiskIsFull) {
  const Descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full);
  Outlet outlet(full.get());
  outlet.write("lost\n");
  EXPECT_FALSE(outlet.pending());
}

TEST(OutletTest, KnowsWhetherALineIsUnfinished) {
  const Descriptor nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  Outlet outlet(nothing.get());
  EXPECT_TRUE(outlet.at_line_start());
  outlet.write("step 1");
  EXPECT_FALSE(outlet.at_line_start());
  outlet.write("\n");
  EXPECT_TRUE(outlet.at_line_start());
  outlet.write("\r\x1b[2Kstep 2");
  EXPECT_FALSE(outlet.at_line_start());
  outlet.write("\r");
  EXPECT_FALSE(outlet.at_line_start()) << "the words are still on the screen";
  outlet.write("\x1b[2");
  outlet.write("K");
  EXPECT_TRUE(outlet.at_line_start()) << "cleared, in two pieces";
  outlet.write("");
  EXPECT_TRUE(outlet.at_line_start());
}

} // namespace
} // namespace trireme::launch
