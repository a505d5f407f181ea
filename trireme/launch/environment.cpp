#include <trireme/launch/environment.h>

#include <sched.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string_view>

namespace trireme::launch {
namespace {

// Set by an outer launcher for its own processes; wrong for ours.
constexpr const char* kForeign[] = {"TRIREME_LISTEN_FD",
                                    "TRIREME_LIFELINE_FD",
                                    "TRIREME_SECRET_FD",
                                    "TRIREME_RESTART",
                                    "TORCHELASTIC_USE_AGENT_STORE",
                                    "TRIREME_HOST",
                                    "TRIREME_SERVERS",
                                    "TRIREME_SERVER",
                                    "TRIREME_WORKER",
                                    "TRIREME_LOCAL_WORKER",
                                    "TRIREME_RUN_ATTEMPT",
                                    "TRIREME_STORE_ADDR",
                                    "TRIREME_STORE_PORT"};
// The same on every machine of a job.
constexpr const char* kPortable[] = {"TRIREME_", "OMP_",   "GOMP_",           "MKL_", "KMP_", "GLOO_",
                                     "NCCL_",    "TORCH_", "LD_LIBRARY_PATH="};

} // namespace

std::vector<std::string> rank_environment(const RankPlace& place, const std::vector<std::string>& inherited,
                                          const Variables& extra) {
  std::map<std::string, std::string> all;
  for (const std::string& entry : inherited) {
    const size_t equals = entry.find('=', 1); // from 1: a shell may pass odd names that start with '='
    if (equals != std::string::npos) {
      all.insert_or_assign(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  for (const char* name : kForeign) {
    all.erase(name);
  }
  for (const auto& [name, value] : extra) {
    all[name] = value;
  }
  const std::string threads =
      std::to_string(std::max(1, place.usable_cores / std::max(1, place.share.local_ranks + place.share.neighbours)));
  if (std::string& omp = all["OMP_NUM_THREADS"]; omp.empty()) {
    omp = threads;
  }
  if (all["OMP_WAIT_POLICY"].empty()) {
    all.erase("OMP_WAIT_POLICY");
    all.try_emplace("GOMP_SPINCOUNT", kSpinCount);
  }
  const auto set = [&](const char* name, const auto& value) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
      all[name] = std::to_string(value);
    } else {
      all[name] = value;
    }
  };
  const Share& share = place.share;
  set("RANK", share.first_rank + place.local_rank);
  set("LOCAL_RANK", place.local_rank);
  set("WORLD_SIZE", share.ranks);
  set("LOCAL_WORLD_SIZE", share.local_ranks);
  set("GROUP_RANK", share.node);
  set("MASTER_ADDR", share.address);
  set("MASTER_PORT", share.ports.program);
  set("TRIREME_STORE_ADDR", share.address);
  set("TRIREME_STORE_PORT", share.ports.store);
  set("TORCHELASTIC_RESTART_COUNT", share.restarts);
  set("TORCHELASTIC_MAX_RESTARTS", share.max_restarts);
  set("TORCHELASTIC_RUN_ID", place.run_id);
  set("TRIREME_RUN_ID", place.run_id);
  set("TRIREME_LIFELINE_FD", place.lifeline_fd);
  set("TRIREME_SECRET_FD", place.secret_fd);
  set("TRIREME_TTY", place.local_rank == 0 ? share.terminal_columns : 0);
  if (place.listen_fd >= 0) {
    set("TRIREME_LISTEN_FD", place.listen_fd);
  }
  if (share.restarts > 0) {
    set("TRIREME_RESTART", 1);
  }
  if (!place.host.empty()) {
    set("TRIREME_HOST", place.host);
  }
  for (const auto& [name, value] : share.variables) {
    all[name] = value;
  }
  std::vector<std::string> entries;
  entries.reserve(all.size());
  for (const auto& [name, value] : all) {
    entries.push_back(name + "=" + value);
  }
  return entries;
}

Variables portable_variables(const std::vector<std::string>& inherited) {
  Variables chosen;
  for (const std::string& entry : inherited) {
    const size_t equals = entry.find('=');
    const bool wanted = std::any_of(std::begin(kPortable), std::end(kPortable),
                                    [&](const char* start) { return entry.starts_with(start); });
    const std::string name = entry.substr(0, equals);
    if (wanted && std::find(std::begin(kForeign), std::end(kForeign), name) == std::end(kForeign)) {
      chosen.emplace_back(name, entry.substr(equals + 1));
    }
  }
  return chosen;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

std::string random_id() {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof(bits), 0) != static_cast<ssize_t>(sizeof(bits))) {
    bits = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) ^
           (static_cast<uint64_t>(::getpid()) << 40);
  }
  std::string text;
  for (int digit = 0; digit < 16; ++digit, bits >>= 4) {
    text += "0123456789abcdef"[bits & 15];
  }
  return text;
}

} // namespace trireme::launch
