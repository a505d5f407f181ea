#include <trireme/launch/host_pool.h>

#include <trireme/base/env.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/agent_process.h>
#include <trireme/launch/environment.h>

#include <algorithm>
#include <cmath>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

} // namespace

HostPool::HostPool(const LaunchOptions& options, std::string run_id, std::string secret, const SignalWatch& signals,
                   Screen& screen, MakePlace make_place)
    : options_(options),
      run_id_(std::move(run_id)),
      secret_(std::move(secret)),
      screen_(screen),
      make_place_(std::move(make_place)) {
  if (!make_place_) {
    make_place_ = [&signals, &screen](AgentSetup setup) {
      auto connection = std::make_unique<AgentProcess>(setup.command, signals);
      return std::make_unique<RemotePlace>(std::move(setup), std::move(connection),
                                           [&screen](const std::string& words) { screen.say(words); });
    };
  }
  for (const Host& host : options.hosts) {
    entries_.push_back({host, nullptr, false, "", std::nullopt});
  }
}

HostPool::~HostPool() {
  for (Entry& entry : entries_) { // all at once, before the destructors wait for each
    if (entry.agent) {
      entry.agent->dismiss();
    }
  }
}

size_t HostPool::least() const {
  const int all = static_cast<int>(entries_.size());
  const int most = options_.max_nodes > 0 ? std::min(options_.max_nodes, all) : all;
  return static_cast<size_t>(options_.min_nodes > 0 ? options_.min_nodes : most);
}

std::vector<HostPool::Entry*> HostPool::usable() {
  std::vector<Entry*> chosen;
  for (Entry& entry : entries_) {
    if (!entry.lost && (options_.max_nodes == 0 || static_cast<int>(chosen.size()) < options_.max_nodes)) {
      chosen.push_back(&entry);
    }
  }
  return chosen;
}

std::vector<Member> HostPool::choose() {
  const std::vector<Entry*> chosen = usable();
  if (chosen.size() < least()) {
    return {};
  }
  int slots = 0;
  for (const Entry* entry : chosen) {
    slots += entry->host.slots;
  }
  Arrangement plain;
  plain.ranks = options_.ranks > 0 ? std::min(options_.ranks, slots) : slots;
  plain.command = options_.command;
  const std::string said = arrangement_.note;
  arrangement_ = options_.arrange ? options_.arrange(slots) : plain;
  if (!arrangement_.note.empty() && arrangement_.note != said) {
    screen_.say(arrangement_.note);
  }
  address_ = chosen.front()->host.address;
  for (Entry& entry : entries_) {
    const bool stays = std::find(chosen.begin(), chosen.end(), &entry) != chosen.end();
    entry.agent = stays ? std::move(entry.agent) : nullptr; // it would not be read
  }
  std::vector<Member> members;
  int left = arrangement_.ranks;
  for (Entry* entry : chosen) {
    const int ranks = std::min(left, entry->host.slots);
    left -= ranks;
    if (ranks == 0) {
      entry->agent.reset();
      continue;
    }
    if (is_loopback(address_) && !is_loopback(entry->host.address)) {
      throw InputError("launch",
                       concat(entry->host.name, " cannot reach the first host of the hostfile, ", address_,
                              ", because that is a loopback address"),
                       "Give the first host by the name or address at which the others reach it.");
    }
    if (!entry->agent) {
      connect(*entry);
    }
    members.push_back({entry->host.name, *entry->agent, ranks});
  }
  return members;
}

std::vector<std::string> HostPool::agent_command(const Host& host) {
  const std::string agent =
      options_.agent.empty() ? fs::read_symlink("/proc/self/exe").string() : options_.agent.string();
  if (!here_ && is_this_machine(host.address)) {
    here_ = host.name;
  }
  if (here_ == host.name) {
    return {agent, "agent"};
  }
  std::vector<std::string> command = options_.rsh;
  if (command.empty()) {
    for (const std::string& word : split(env::text("TRIREME_RSH").value_or(""), ' ')) {
      if (!word.empty()) {
        command.push_back(word);
      }
    }
  }
  if (command.empty()) {
    command = {"ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"};
  }
  command.insert(command.end(), {host.name,
                                 std::any_of(command.begin(), command.end(),
                                             [](const std::string& word) { return fs::path(word).filename() == "ssh"; })
                                     ? for_shell(agent)
                                     : agent,
                                 "agent"});
  return command;
}

void HostPool::connect(Entry& entry) {
  Variables variables = portable_variables(own_environment());
  variables.insert(variables.end(), options_.extra_env.begin(), options_.extra_env.end());
  AgentSetup setup;
  setup.host = entry.host.name;
  setup.command = agent_command(entry.host);
  setup.heartbeat_timeout = options_.heartbeat_timeout;
  // Without restarts nothing replaces the ranks, so a paused launcher must not end them.
  setup.lease_seconds = options_.max_restarts > 0 ? kHeartbeatsOfALease * options_.heartbeat_timeout
                                                  : std::max(60.0, 10 * options_.heartbeat_timeout);
  setup.job = {{"do", "job"},
               {"host", to_text(entry.host.name)},
               {"folder", to_text(fs::current_path().string())},
               {"run_id", run_id_},
               {"secret", secret_},
               {"env", pack_variables(variables)},
               {"lease_s", setup.lease_seconds}};
  entry.agent = make_place_(std::move(setup));
}

void HostPool::drop_lost() {
  for (Entry& entry : entries_) {
    if (entry.agent && entry.agent->state() == Place::State::lost) {
      entry.lost = true;
      entry.why_lost = entry.agent->why_lost();
      // Keep the maximum: a later agent of the host may never have had ranks.
      entry.leased_until = std::max(entry.leased_until, entry.agent->leased_until());
      entry.agent.reset();
    }
  }
}

void HostPool::forgive() {
  if (usable().size() < least()) {
    for (Entry& entry : entries_) {
      entry.lost = false;
    }
  }
}

std::optional<HostPool::Leased> HostPool::leased() const {
  std::optional<Leased> last;
  for (const Entry& entry : entries_) {
    if (entry.leased_until && *entry.leased_until > Clock::now() && (!last || *entry.leased_until > last->until)) {
      last = Leased{entry.host.name, *entry.leased_until};
    }
  }
  return last;
}

std::string HostPool::shortage() const {
  std::vector<std::string> lost;
  for (const Entry& entry : entries_) {
    if (entry.lost) {
      lost.push_back(concat(entry.host.name, " (", entry.why_lost, ")"));
    }
  }
  const size_t left = entries_.size() - lost.size();
  return concat(
      "only ", left, " of the ", least(), least() == 1 ? " host" : " hosts", " that the job needs can be used",
      options_.min_nodes > 0 ? concat(" (--min-nodes ", options_.min_nodes, ")") : "", "; lost: ", join(lost, ", "));
}

} // namespace trireme::launch
