#include <trireme/comm/explain.h>

#include <trireme/base/text.h>
#include <trireme/base/units.h>

#include <algorithm>

namespace trireme::comm {
namespace {

constexpr size_t kQuotedError = 400;

/// `is at all_reduce #6 ("loss", 4 B)`, or what it last finished.
std::string whereabouts(const PeerView& peer) {
  const OpSummary* last = peer.progress ? peer.progress->last() : nullptr;
  if (last == nullptr) {
    return "has done nothing in this group";
  }
  return (last->done ? "last did " : "is at ") + describe(*last);
}

std::string each(const std::vector<int>& ranks, const RollCall& roll_call) {
  std::vector<std::string> parts;
  for (const int rank : ranks) {
    parts.push_back(concat("rank ", rank, " ", whereabouts(roll_call.peers.at(rank))));
  }
  return join(parts, ", ");
}

std::string shorten(std::string text) {
  if (text.size() > kQuotedError) {
    text = text.substr(0, kQuotedError) + "...";
  }
  return text;
}

/// The members sorted by what is wrong with them.
struct Findings {
  std::vector<int> silent;
  std::vector<int> failed;
  std::vector<int> left;
  std::vector<int> different;
  std::vector<int> absent;
};

bool differs(const OpSummary& mine, const OpSummary& theirs) {
  return mine.op != theirs.op || mine.bytes != theirs.bytes || mine.dtype != theirs.dtype;
}

Findings look(const Asker& asker, const OpSummary& op, const RollCall& roll_call) {
  Findings found;
  for (const int rank : asker.members) {
    const auto entry = roll_call.peers.find(rank);
    if (entry == roll_call.peers.end()) {
      continue;
    }
    const PeerView& peer = entry->second;
    const OpSummary* same = peer.progress ? peer.progress->collective(op.number) : nullptr;
    const bool came = op.is_message() ? rank != op.peer : peer.progress && peer.progress->collectives >= op.number;
    if (!peer.answered && !peer.left) {
      found.silent.push_back(rank);
    } else if (!op.is_message() && same != nullptr && differs(op, *same)) {
      found.different.push_back(rank);
    } else if (!peer.error.empty()) {
      found.failed.push_back(rank);
    } else if (peer.left && !came) {
      found.left.push_back(rank);
    } else if (!came) {
      found.absent.push_back(rank);
    }
  }
  return found;
}

} // namespace

std::string name_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) {
    names.push_back(std::to_string(rank));
  }
  if (names.size() == 1) {
    return "rank " + names[0];
  }
  const std::string last = names.empty() ? "" : names.back();
  if (!names.empty()) {
    names.pop_back();
  }
  return "ranks " + join(names, ", ") + " and " + last;
}

PeerError explain(const Asker& asker, const OpSummary& op, const Trouble& trouble, const RollCall& roll_call) {
  const double seconds = static_cast<double>(asker.timeout.count()) / 1000;
  const std::string head =
      concat(describe(op), " in group \"", asker.group, "\" ",
             trouble.kind == Trouble::Kind::deadline ? concat("is not done after ", format_seconds(seconds)) : std::string("failed"),
             " on rank ", asker.world_rank, " of ", asker.world_size, ": ");
  if (!roll_call.store_answers) {
    const std::string host =
        roll_call.store_host >= 0 ? concat("rank ", roll_call.store_host, ", which hosts the meeting point, ") : "the host of the meeting point ";
    return PeerError("comm", concat(head, host, "does not answer any more (ended, killed, stopped or unreachable)."),
                     concat("Look at the output of ", roll_call.store_host >= 0 ? concat("rank ", roll_call.store_host) : "the launcher",
                            "; restart from the last checkpoint."));
  }
  const Findings found = look(asker, op, roll_call);
  std::vector<std::string> causes;
  std::string next;
  const auto advise = [&](const std::string& advice) {
    if (next.empty()) {
      next = advice;
    }
  };
  if (!found.silent.empty()) {
    causes.push_back(concat(name_ranks(found.silent), found.silent.size() == 1 ? " does" : " do",
                            " not answer any more: killed, stopped or unreachable (", each(found.silent, roll_call), ")"));
    advise(concat("Look at the output of ", name_ranks(found.silent),
                  " and for a lack of memory on that host; restart from the last checkpoint."));
  }
  for (const int rank : found.different) {
    const OpSummary& theirs = *roll_call.peers.at(rank).progress->collective(op.number);
    causes.push_back(concat("rank ", rank, " called ", describe(theirs), " of ", theirs.dtype, " where this rank called ", describe(op),
                            " of ", op.dtype));
    advise("All ranks of a group must call the same operations with the same sizes in the same order: look at what differs between them.");
  }
  for (const int rank : found.failed) {
    const PeerView& peer = roll_call.peers.at(rank);
    causes.push_back(concat("rank ", rank, peer.left ? " has ended with an error: " : " reports: ", shorten(peer.error)));
    advise(concat("Look at the output of rank ", rank, "; restart from the last checkpoint."));
  }
  if (!found.left.empty()) {
    causes.push_back(concat(name_ranks(found.left), found.left.size() == 1 ? " has" : " have", " left already (",
                            each(found.left, roll_call), ")"));
    advise("Every rank must take the same number of steps: look for a shorter data set or an early return there.");
  }
  if (!found.absent.empty()) {
    causes.push_back(concat(name_ranks(found.absent), found.absent.size() == 1 ? " has" : " have", " not come (",
                            each(found.absent, roll_call), ")"));
    advise(concat("Look at what ", name_ranks(found.absent),
                  found.absent.size() == 1 ? " is" : " are", " doing instead; if it only needs longer, set TRIREME_TIMEOUT to more seconds."));
  }
  if (causes.empty()) {
    causes.push_back(concat("all ranks have come and answer, so a connection is broken or too slow (", shorten(trouble.happened), ")"));
    advise("Check the network between the hosts; restart from the last checkpoint, or set TRIREME_TIMEOUT to more seconds.");
  }
  return PeerError("comm", head + join(causes, "; ") + ".", next);
}

} // namespace trireme::comm
