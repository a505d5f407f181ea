#pragma once

#include "launch_process.h"

#include <trireme/base/error.h>
#include <trireme/base/file.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace trireme::launch {

/// Hosts are agents on this machine, which a script starts in place of ssh.
class HostsTest : public LaunchTest {
 protected:
  HostsTest() {
    // As ssh: HOST PROGRAM ARGS... A file down.HOST makes the host unreachable.
    std::ofstream script(folder() / "rsh");
    script << "#!/bin/sh\n"
              "host=$1; shift\n"
              "if test -e "
           << folder().string()
           << "/down.$host; then "
              "echo \"ssh: connect to host $host port 22: No route to host\" >&2; exit 255; fi\n"
              "echo \"Welcome to $host!\"\n"
              "n=0; while test -e "
           << folder().string()
           << "/pid.agent.$host.$n; do n=$((n+1)); done\n"
              "echo $$ > "
           << folder().string() << "/pid.agent.$host.$n.part; mv " << folder().string() << "/pid.agent.$host.$n.part "
           << folder().string()
           << "/pid.agent.$host.$n\n"
              "exec \"$@\"\n";
    script.close();
    std::filesystem::permissions(folder() / "rsh", std::filesystem::perms::owner_all);
  }
  /// As ssh in this too: an agent survives the end of the script, and keeps the pipes.
  void detach_agents() const {
    std::string script = read_file(folder() / "rsh");
    const std::string last = "exec \"$@\"\n";
    script.replace(script.rfind(last), last.size(), "exec 3<&0; setsid \"$@\" <&3 & wait\n");
    write_file_atomically(folder() / "rsh", script, 0700);
  }
  /// Of an agent that detach_agents() has detached.
  pid_t agent_of_rank(const std::string& name) const { return parent_of(parent_of(pid_of(name))); }
  static pid_t parent_of(pid_t pid) {
    const std::string stat = read_file(concat("/proc/", pid, "/stat"));
    return static_cast<pid_t>(std::stol(stat.substr(stat.rfind(')') + 4)));
  }

  // Hosts named a, b, c... with addresses of the loopback network that no interface has.
  LaunchOptions on_hosts(int hosts, int slots, const std::vector<std::string>& steps) const {
    LaunchOptions options = probes(0, steps);
    for (int i = 0; i < hosts; ++i) {
      options.hosts.push_back({std::string(1, static_cast<char>('a' + i)), slots, concat("127.0.0.", i + 2)});
    }
    options.rsh = {(folder() / "rsh").string()};
    options.agent = LAUNCH_AGENT;
    return options;
  }

  void wait_for_ranks(int ranks, int restart = 0) const {
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(appears(concat("pid.rank.", rank, ".", restart)));
    }
  }

  std::string value(int rank, const std::string& name) const {
    const std::string text = concat("\n", log(rank));
    const size_t at = text.rfind(concat("\n", name, "="));
    return at == std::string::npos ? "missing"
                                   : text.substr(at + name.size() + 2, text.find('\n', at + 1) - at - name.size() - 2);
  }
};

} // namespace trireme::launch
