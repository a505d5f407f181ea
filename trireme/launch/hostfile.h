#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

/// One line of a hostfile: a machine and how many ranks it takes.
struct Host {
  std::string name;
  int slots = 1;
  /// Address at which ranks of other hosts reach it; the name without address=.
  std::string address;
};

/// Reads the lines of a hostfile, in order:
///
///     node1 slots=4                  # as DeepSpeed and Open MPI write it (max_slots= is read and ignored)
///     node2:4                        # as MPICH writes it
///     node3                          # one rank
///     [fe80::1]:2                    # an IPv6 address with a number needs brackets
///     ns1 slots=2 address=10.0.0.1   # if the name for --rsh is not the address
///
/// Everything from # on is a comment. Refuses a host that occurs twice: give it once with all its slots.
/// `source` is the name for messages. Errors: InputError "hosts:3: ..." for any other line, or without a
/// host.
std::vector<Host> parse_hostfile(std::string_view text, const std::string& source);

/// The same from a file in UTF-8, with or without its byte order mark. Errors: InputError for UTF-16 too.
std::vector<Host> read_hostfile(const std::filesystem::path& file);

/// Whether `address` is this machine: localhost, its host name, or an address of one of its interfaces.
/// Cost: looks up a name that is not a number, which takes seconds if no name server answers.
bool is_this_machine(const std::string& address);

} // namespace trireme::launch
