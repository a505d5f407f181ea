#pragma once

#include <tests/tools/shell.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <regex>
#include <sstream>
#include <string>

namespace trireme::tools {

/// Trainings of two workers with parameter servers.
class ServersTrainTest : public RunFolder {
 protected:
  void write_servers(const std::string& sync, int steps) {
    auto run = nlohmann::json::parse(read_file(folder / "run.json"));
    run["parallel"] = {{"sync", nlohmann::json::parse(sync)}};
    run["training"] = {{"steps", steps}};
    write_file_atomically(folder / "servers.json", run.dump());
  }
  Finished train(const std::string& file, const std::string& out, const std::string& more = "",
                 const std::string& before = "") {
    return sh(concat(before, kTrireme, " train ", path(file), " -n 2 --out ", path(out), ' ', more));
  }
  // By step; of a step that was made twice the last.
  std::map<int64_t, double> values(const std::string& file, const std::string& key) {
    std::map<int64_t, double> all;
    std::istringstream lines(read_file(folder / file));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row.contains(key)) {
        all[row.at("step")] = row.at(key);
      }
    }
    return all;
  }
  std::map<int64_t, double> losses(const std::string& out) { return values(out + "/metrics.jsonl", "loss"); }
  // A shell command that kills the task with this variable as soon as metrics.jsonl has `lines` lines and `condition`
  // holds.
  std::string killer(const std::string& out, int lines, const std::string& variable,
                     const std::string& condition = "true") {
    return concat("(while [ \"$(cat ", path(out), "/metrics.jsonl 2>/dev/null | wc -l)\" -lt ", lines, " ] || ! (",
                  condition, "); do sleep 0.01; done; for p in $(pgrep -f \"trireme-rank train.*", path(out),
                  "\"); do tr \"\\\\0\" \"\\\\n\" < /proc/$p/environ 2>/dev/null | grep -qx ", variable,
                  " && kill -9 $p; done) & ");
  }
  static constexpr const char* kSlowly =
      "TRIREME_FAULT=rank=1,phase=step,kind=delay,seconds=0.02 "; // what is killed shall be killed before the end
  struct Account {
    std::string log;
    int64_t updates = 0;
    int64_t accepted = 0;
    int64_t dropped = 0;
    int64_t lost = 0;
    int64_t workers_lost = 0;
  };
  // What a server says at its end.
  Account account(const std::string& out, int server) {
    Account account;
    account.log = read_file(folder / out / concat("logs/server", server, ".log"));
    std::smatch found;
    const std::regex last(
        "server [0-9]+: ([0-9]+) updates of ([0-9]+) gradients; ([0-9]+) came too late, ([0-9]+) were lost, ([0-9]+) "
        "workers were lost");
    EXPECT_TRUE(std::regex_search(account.log, found, last)) << account.log;
    int64_t* const numbers[] = {&account.updates, &account.accepted, &account.dropped, &account.lost,
                                &account.workers_lost};
    for (size_t i = 0; i + 1 < found.size(); ++i) {
      *numbers[i] = std::stoll(found[i + 1]);
    }
    return account;
  }
  static int rounds() { return std::getenv("TRIREME_LONG_TESTS") != nullptr ? 20 : 1; }
};

} // namespace trireme::tools
