#include "tests/support/two_hosts.h"

#include "tests/support/command.h"

#include <trireme/base/error.h>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace trireme::test {
namespace {

std::string must(const std::string& command) {
  const auto [status, output] = run_command(command);
  if (status != 0) {
    throw Error("test", concat(command, ": ", output));
  }
  return output;
}

} // namespace

std::optional<std::string> TwoHosts::missing() {
  if (geteuid() != 0) {
    return "network namespaces need root";
  }
  if (run_command("command -v ip && command -v tc").first != 0) {
    return "ip and tc (package iproute2) are not installed";
  }
  const std::string name = concat("trireme-", getpid(), "-try");
  const auto [status, output] =
      run_command(concat("ip netns add ", name, " && ip -n ", name, " link add t0 type veth peer name t1"));
  run_command("ip netns del " + name);
  return status == 0 ? std::nullopt : std::optional("network namespaces cannot be made here: " + output);
}

TwoHosts::TwoHosts() {
  for (const int host : {0, 1}) {
    names_[host] = concat("trireme-", getpid(), "-", host);
    must(concat("ip netns add ", names_[host], " && ip -n ", names_[host], " link set lo up"));
  }
  must(concat("ip link add cable netns ", names_[0], " type veth peer name cable netns ", names_[1]));
  for (const int host : {0, 1}) {
    must(concat("ip -n ", names_[host], " addr add ", address(host), "/24 dev cable && ip -n ", names_[host],
                " link set cable up"));
  }
}

TwoHosts::~TwoHosts() {
  for (const auto& name : names_) {
    run_command("ip netns del " + name);
  }
}

void TwoHosts::enter(int host) const {
  const int descriptor = open(("/var/run/netns/" + names_[host]).c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 || setns(descriptor, CLONE_NEWNET) != 0) {
    throw Error("test", concat("cannot enter ", names_[host], ": ", std::strerror(errno)));
  }
  close(descriptor);
}

std::string TwoHosts::address(int host) const {
  return concat("10.213.7.", host + 1);
}

int64_t TwoHosts::sent_bytes(int host) const {
  return std::atoll(
      must(concat("ip netns exec ", names_[host], " cat /sys/class/net/cable/statistics/tx_bytes")).c_str());
}

void TwoHosts::limit(const std::string& rate) const {
  for (const auto& name : names_) {
    must(concat("ip netns exec ", name, " tc qdisc replace dev cable root tbf rate ", rate,
                " burst 256kb latency 50ms"));
  }
}

void TwoHosts::cut() const {
  // Frames leave for an address that nobody has. Not `link set down`, which either side would notice, nor a queue that
  // takes nothing: to TCP a probe that does not leave its own host is no probe, so it would never give up.
  for (const int host : {0, 1}) {
    must(concat("ip -n ", names_[host], " neigh replace ", address(1 - host),
                " lladdr 02:00:00:00:00:01 dev cable nud permanent"));
  }
}

void TwoHosts::unplug() const {
  for (const auto& name : names_) {
    must(concat("ip -n ", name, " link set cable down"));
  }
}

} // namespace trireme::test
