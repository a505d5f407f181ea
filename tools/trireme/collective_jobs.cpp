#include "collective_check.h"

#include "job.h"

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/comm/backends.h>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <string_view>

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;

/// Longer than the ranks' own deadline and the time of their report.
constexpr std::chrono::seconds kDeadline{90};
constexpr size_t kQuoted = 400;

struct Setup {
  std::string backend;
  std::string device;
  int ranks = 2;

  bool alone() const { return ranks == 1; } // over a backend for several
  size_t operations() const { return checked_collectives().size() - (alone() ? 1 : 0); }
  std::string name() const {
    const std::string counted = concat(ranks, ranks == 1 ? " rank" : " ranks");
    return concat(backend, " (", counted,
                  device == "cpu"    ? ")"
                  : alone()          ? ", a GPU)"
                  : device == "cuda" ? ", a GPU each)"
                                     : " on one GPU)");
  }
};

bool is_there(const std::string& backend) {
  const auto& all = comm::backends();
  return std::any_of(all.begin(), all.end(),
                     [&](const comm::BackendEntry& entry) { return backend == entry.name && entry.available(); });
}

bool in_path(const std::string& program) {
  const std::vector<std::string> folders = split(env::text("PATH").value_or(""), ':');
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    return ::access(concat(folder, '/', program).c_str(), X_OK) == 0;
  });
}

std::vector<Setup> setups(int cards) {
  std::vector<Setup> found;
  for (const char* backend : {"shm", "gloo"}) {
    if (is_there(backend)) {
      found.push_back({backend, "cpu"});
    }
  }
  if (!is_there("mpi") && in_path("mpirun")) { // inside of mpirun another one cannot start
    found.push_back({"mpi", "cpu"});
  }
  if (cards > 0) {
    if (cards > 1 || is_there("nccl")) {
      found.push_back({"nccl", "cuda", cards});
    }
    found.push_back({"staged", "cuda:0"});
  }
  return found;
}

JobResult start(const Setup& setup, const fs::path& folder) {
  std::vector<std::string> rank = {(folder / "trireme-rank").string(), "check-collectives", setup.device};
  if (setup.alone()) {
    rank.push_back(setup.backend);
  }
  const std::string count = std::to_string(setup.ranks);
  std::vector<std::string> words = {(folder / "trireme").string(), "launch", "-n", count, "--"};
  Variables variables = {{"TRIREME_BACKEND", setup.alone() ? "auto" : setup.backend}, {"OMP_NUM_THREADS", "1"}};
  if (setup.backend == "mpi") {
    words = {"mpirun", "-n", count};
    variables.insert(variables.end(), under_mpirun().begin(), under_mpirun().end());
  }
  words.insert(words.end(), rank.begin(), rank.end());
  return run_job(words, variables, kDeadline);
}

/// Describes a failed job: the error that a rank ended with, or its first, or its last line.
std::string sentence(const JobResult& result) {
  if (result.killed) {
    return concat("the ranks did not end within ", kDeadline.count(), " s");
  }
  std::string last;
  for (const std::string_view begin : {"error: [", "error: "}) {
    std::istringstream lines(result.errors);
    for (std::string line; std::getline(lines, line);) {
      if (const size_t at = line.find(begin); at != std::string::npos) {
        return line.substr(at + std::string_view("error: ").size(), kQuoted);
      }
      last = line.empty() ? last : line;
    }
  }
  return last.empty() ? concat("the ranks ended with status ", result.status) : last.substr(0, kQuoted);
}

} // namespace

std::vector<DeviceFinding> check_all_collectives(int cards) {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  std::map<std::string, std::vector<std::string>> right;
  std::map<std::string, std::vector<std::string>> wrong;
  std::vector<DeviceFinding> broken;
  for (const Setup& setup : setups(cards)) {
    const JobResult result = start(setup, folder);
    size_t seen = 0;
    std::istringstream lines(result.output);
    for (std::string line; std::getline(lines, line);) {
      const auto finding = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!finding.is_object() || !finding.contains("op")) {
        continue;
      }
      ++seen;
      const std::string op = finding.at("op");
      if (finding.at("good")) {
        right[op].push_back(setup.name());
      } else {
        wrong[op].push_back(concat(setup.name(), ": ", finding.at("found").get<std::string>()));
      }
    }
    constexpr int kNotHere = 2; // the ranks' InputError: no module for this mpirun
    if (setup.backend == "mpi" && result.status == kNotHere) {
      continue;
    }
    if (result.killed || result.status != 0 || seen != setup.operations()) {
      broken.push_back({"collectives", concat("over ", setup.name(), ": ", sentence(result)), false});
    }
  }
  std::vector<DeviceFinding> findings;
  for (const std::string& op : checked_collectives()) {
    std::string text = join(wrong[op], "; ");
    if (!right[op].empty()) {
      text += concat(text.empty() ? "" : "; ", "as computed over ", join(right[op], ", "));
    }
    if (!text.empty()) {
      findings.push_back({op, text, wrong[op].empty()});
    }
  }
  if (!broken.empty()) {
    std::vector<std::string> sentences;
    for (const DeviceFinding& finding : broken) {
      sentences.push_back(finding.found);
    }
    findings.push_back({"collectives", join(sentences, "; "), false});
  }
  return findings;
}

} // namespace trireme::tools
