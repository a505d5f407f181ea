// trireme train --resume with parameter servers: the servers go on from the checkpoint whichever worker is late or
// lost, and no step is counted wrong.
#include <tests/tools/shell.h>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <regex>
#include <sstream>

namespace trireme::tools {
namespace {

class ServersResumeTrainTest : public RunFolder {
 protected:
  void write_servers(const std::string& mode, int steps) {
    auto run = nlohmann::json::parse(read_file(folder / "run.json"));
    run["parallel"] = {{"sync", {{"kind", "server"}, {"servers", 2}, {"mode", mode}}}};
    run["training"] = {{"steps", steps}};
    write_file_atomically(folder / "servers.json", run.dump());
  }
  Finished train(const std::string& out, int workers, const std::string& more = "", const std::string& before = "") {
    const std::string command = concat(" train ", path("servers.json"), " -n ", workers, " --out ", path(out), ' ');
    return sh(concat(before, kTrireme, command, more));
  }
  static std::string with_fault(const std::string& fault) { return concat("TRIREME_FAULT=\"", fault, "\" "); }
  std::map<int64_t, double> losses_of(const std::string& out) {
    std::map<int64_t, double> all;
    std::istringstream lines(read_file(folder / out / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line);
      all[row.at("step")] = row.at("loss");
    }
    return all;
  }
  // Steps of the optimizer.
  int64_t saved_steps(const std::string& checkpoint) {
    const auto manifest = nlohmann::json::parse(read_file(folder / checkpoint / "manifest.json"));
    return manifest.at("state").at("optimizer").at("steps");
  }
  std::string log_of(const std::string& out, const std::string& task) {
    return read_file(folder / out / concat("logs/", task, ".log"));
  }
  // Updates and gradients of a server at its end, and those that came too late or were lost.
  std::string account_of(const std::string& out, int server) {
    const std::string log = log_of(out, concat("server", server)); // of all runs in the folder
    const std::regex account("[0-9]+ updates of [0-9]+ gradients; [0-9]+ came too late, [0-9]+ were lost");
    std::string last;
    for (std::sregex_iterator found(log.begin(), log.end(), account), end; found != end; ++found) {
      last = found->str();
    }
    EXPECT_NE(last, "") << log;
    return last;
  }
};

// Worker 0 saves when worker 1 has done all its steps, so both counts are known: 20 steps, and 40 updates.
TEST_F(ServersResumeTrainTest, AsyncWorkersLoseNoUpdateWhenTheFirstIsLate) {
  write_servers("async", 20);
  const Finished first = train("out", 2, "", with_fault("rank=0,step=20,phase=data,kind=delay,seconds=8"));
  ASSERT_EQ(first.status, 0) << first.output;
  ASSERT_EQ(saved_steps("out/checkpoints/global_step20"), 40);
  const Finished on =
      train("out", 2, "--resume --set training.steps=30", with_fault("rank=0,step=21,phase=data,kind=delay,seconds=8"));
  ASSERT_EQ(on.status, 0) << on.output;
  EXPECT_EQ(saved_steps("out/checkpoints/global_step30"), 60);
  for (int server = 0; server < 2; ++server) {
    EXPECT_EQ(account_of("out", server), "20 updates of 20 gradients; 0 came too late, 0 were lost");
    EXPECT_THAT(log_of("out", concat("server", server)), testing::HasSubstr("continues from global_step20"));
  }
  const std::map<int64_t, double> losses = losses_of("out");
  EXPECT_LT(losses.at(30), losses.at(20) + 0.3) << "what worker 1 has made is of the checkpoint";
  // One process goes on from both counts.
  const Finished alone = sh(concat(kTrireme, " train ", path("run.json"), " --set training.steps=32 -n 1 --out ",
                                   path("alone"), " --resume ", path("out/checkpoints")));
  ASSERT_EQ(alone.status, 0) << alone.output;
  EXPECT_EQ(losses_of("alone").begin()->first, 31);
  EXPECT_EQ(saved_steps("alone/checkpoints/global_step32"), 62);
}

TEST_F(ServersResumeTrainTest, AnAsyncWorkerThatIsStartedAgainGoesOnWhereTheOtherIs) {
  write_servers("async", 20);
  const Finished first = train("out", 2);
  ASSERT_EQ(first.status, 0) << first.output;
  const std::string faults = "rank=1,step=40,phase=data,kind=kill;rank=0,phase=data,kind=delay,seconds=0.05";
  const Finished on = train("out", 2, "--resume --set training.steps=120", with_fault(faults));
  ASSERT_EQ(on.status, 0) << on.output;
  const std::string log = log_of("out", "worker1");
  std::smatch found;
  const std::regex goes_on("worker 1 goes on at step ([0-9]+), where its servers are");
  ASSERT_TRUE(std::regex_search(log, found, goes_on)) << log;
  EXPECT_GE(std::stoi(found[1]), 39) << "it has made 39 steps itself";
}

TEST_F(ServersResumeTrainTest, OneWorkerGoesOnAsIfItHadNotStopped) {
  for (const std::string mode : {"sync", "async"}) {
    write_servers(mode, 30);
    ASSERT_EQ(train(mode + "_whole", 1).status, 0);
    ASSERT_EQ(train(mode + "_parts", 1, "--set training.steps=20").status, 0);
    const Finished on = train(mode + "_parts", 1, "--resume --set training.steps=30");
    ASSERT_EQ(on.status, 0) << on.output;
    const auto tensors = [&](const char* of) {
      return tensor_bytes_of_one(folder / (mode + of) / "checkpoints/global_step30");
    };
    EXPECT_TRUE(tensors("_parts") == tensors("_whole")) << mode;
    EXPECT_EQ(saved_steps(mode + "_parts/checkpoints/global_step30"), 30);
  }
}

// Worker 0 is killed when it has joined, before, while and after it loads. Without it the other one brings the
// checkpoint; the run goes on as the undisturbed one, but for the steps that one of them makes alone.
TEST_F(ServersResumeTrainTest, TheFirstWorkerMayBeKilledBeforeItsFirstStep) {
  const int rounds = std::getenv("TRIREME_LONG_TESTS") != nullptr ? 20 : 2;
  write_servers("sync", 40);
  ASSERT_EQ(train("base", 2, "--set training.steps=20").status, 0);
  const double at_random = losses_of("base").begin()->second;
  std::filesystem::copy(folder / "base", folder / "clean", std::filesystem::copy_options::recursive);
  ASSERT_EQ(train("clean", 2, "--resume").status, 0);
  const std::map<int64_t, double> expected = losses_of("clean");
  ASSERT_LT(expected.at(21), 0.7 * at_random) << "the checkpoint is far from the first values";
  std::mt19937 random(static_cast<unsigned>(::getpid()));
  for (int round = 0; round < rounds; ++round) {
    const std::string out = concat("killed", round);
    std::filesystem::copy(folder / "base", folder / out, std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(folder / out / "logs");
    std::string before;
    std::string what = "at its first step";
    if (round % 2 == 0) {
      before = with_fault("rank=0,step=21,phase=data,kind=kill");
    } else {
      const int wait = static_cast<int>(random() % 60);
      what = concat(wait, " ms after it has joined");
      before = concat("(while ! grep -qs \"worker 0 of 2 has joined\" ", path(out),
                      "/logs/server1.log; do sleep 0.002; done; ", "sleep 0.0", wait < 10 ? "0" : "", wait,
                      "; for p in $(pgrep -f \"trireme-rank train.*", path(out),
                      "\"); do tr \"\\\\0\" \"\\\\n\" < /proc/$p/environ 2>/dev/null | ",
                      "grep -qx TRIREME_WORKER=0/2 && kill -9 $p; done) & ",
                      with_fault("rank=1,phase=backward,kind=delay,seconds=0.05")); // it shall not be done before
    }
    const Finished killed = train(out, 2, "--resume", before);
    ASSERT_EQ(killed.status, 0) << what << ": " << killed.output;
    EXPECT_THAT(killed.output, testing::HasSubstr("starting it again")) << what;
    for (int server = 0; server < 2; ++server) {
      EXPECT_THAT(log_of(out, concat("server", server)), testing::HasSubstr("continues from global_step20")) << what;
      EXPECT_THAT(account_of(out, server), testing::MatchesRegex("20 updates of [0-9]+ .*, 0 were lost")) << what;
    }
    const std::map<int64_t, double> found = losses_of(out);
    EXPECT_EQ(found.rbegin()->first, 40) << what;
    for (const auto& [step, loss] : found) {
      if (step > 20) {
        EXPECT_NEAR(loss, expected.at(step), 0.15 * at_random) << what << ", step " << step;
      }
    }
    EXPECT_EQ(saved_steps(out + "/checkpoints/global_step40"), 40) << what;
  }
}

} // namespace
} // namespace trireme::tools
