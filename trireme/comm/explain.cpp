#include <trireme/comm/explain.h>

#include <trireme/base/text.h>
#include <trireme/base/units.h>
#include <trireme/comm/call_advice.h>
#include <trireme/comm/wait_graph.h>

#include <algorithm>
#include <map>
#include <optional>

namespace trireme::comm {
namespace {

constexpr size_t kQuotedError = 400;

/// The input of an explanation.
struct Scene {
  const Asker& asker;
  const OpSummary& op;
  const RollCall& roll_call;
  WaitGraph graph;
};

/// `is at all_reduce #6 ("loss", 4 B)`, or its last finished operation and current activity; or the ranks that it waits
/// for.
std::string whereabouts(const Scene& scene, int rank) {
  const PeerView& peer = scene.roll_call.peers.at(rank);
  const auto wait = scene.graph.waits.find(rank);
  if (wait != scene.graph.waits.end() && !wait->second.for_ranks.empty()) {
    return describe(wait->second);
  }
  const OpSummary* last = peer.progress ? peer.progress->last() : nullptr;
  const std::string activity = describe_activity(peer);
  const char* const nothing =
      peer.answered ? "has done nothing in this group" : "has not reported an operation in this group";
  return (last == nullptr ? nothing : (last->done ? "last did " : "is at ") + describe(*last)) +
         (activity.empty() ? "" : ", and is " + activity);
}

std::string each(const Scene& scene, const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (const int rank : ranks) {
    parts.push_back(concat("rank ", rank, " ", whereabouts(scene, rank)));
  }
  return join(parts, ", ");
}

std::string shorten(std::string text) {
  if (text.size() > kQuotedError) {
    text = text.substr(0, kQuotedError) + "...";
  }
  return text;
}

/// The members sorted by their state.
struct Findings {
  std::vector<int> silent;
  std::vector<int> vanished;
  std::vector<int> failed;
  std::vector<int> left;
  std::vector<int> different;
  std::vector<int> absent;
};

/// The first operation in which this rank and another differ, as far as both remember.
struct Difference {
  OpSummary mine;
  OpSummary theirs;
};

std::optional<Difference> difference(const Scene& scene, const PeerView& peer) {
  if (scene.op.is_message() || !peer.progress) {
    return std::nullopt;
  }
  std::vector<OpSummary> mine(scene.asker.own.recent.begin(), scene.asker.own.recent.end());
  mine.push_back(scene.op);
  for (const OpSummary& op : mine) {
    const OpSummary* theirs = op.is_message() ? nullptr : peer.progress->collective(op.number);
    if (theirs != nullptr && !op.fits(*theirs)) {
      return Difference{op, *theirs};
    }
  }
  return std::nullopt;
}

/// If one rank is ahead by one operation from some number on: which rank left out which, or "". Names count too
/// here.
std::string left_out(const Scene& scene, int rank, const PeerView& peer) {
  const auto same = [](const OpSummary* a, const OpSummary* b) {
    return a != nullptr && b != nullptr && a->fits(*b) && a->what == b->what;
  };
  if (scene.op.is_message() || !peer.progress) {
    return "";
  }
  for (const OpSummary& mine : scene.asker.own.recent) {
    const OpSummary* theirs = mine.is_message() ? nullptr : peer.progress->collective(mine.number);
    if (theirs == nullptr || same(&mine, theirs)) {
      continue;
    }
    if (same(scene.asker.own.collective(mine.number + 1), theirs)) {
      return concat("rank ", rank, " has left out ", describe(mine), ": its next is ", describe(*theirs));
    }
    if (same(&mine, peer.progress->collective(mine.number + 1))) {
      return concat("this rank has left out ", describe(*theirs), " of rank ", rank, ": its next is ", describe(mine));
    }
    return mine.fits(*theirs)
               ? concat("rank ", rank, " is at ", describe(*theirs), " where this rank is at ", describe(mine))
               : "";
  }
  return "";
}

std::string with_type(const OpSummary& op) {
  return concat(describe(op), " of ", op.dtype, op.detail.empty() ? "" : concat(" (", op.detail, ')'));
}

Findings look(const Scene& scene) {
  const OpSummary& op = scene.op;
  Findings found;
  for (const int rank : scene.asker.members) {
    const auto entry = scene.roll_call.peers.find(rank);
    if (entry == scene.roll_call.peers.end()) {
      continue;
    }
    const PeerView& peer = entry->second;
    const bool came = op.is_message() ? rank != op.peer : peer.progress && peer.progress->collectives >= op.number;
    if (!peer.answered && !peer.left) {
      (peer.vanished() ? found.vanished : found.silent).push_back(rank);
    } else if (difference(scene, peer)) {
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

/// Ranks that block the absent ones without being among them.
std::vector<int> hidden_culprits(const Scene& scene, const Findings& found) {
  std::vector<int> hidden;
  for (const int root : scene.graph.roots) {
    bool named = root == scene.asker.world_rank;
    for (const auto* ranks :
         {&found.silent, &found.vanished, &found.failed, &found.left, &found.different, &found.absent}) {
      named = named || std::find(ranks->begin(), ranks->end(), root) != ranks->end();
    }
    if (!named && scene.roll_call.peers.count(root) != 0) {
      hidden.push_back(root);
    }
  }
  return hidden;
}

/// Ranks that were killed, or called exit().
std::string vanishing(const Scene& scene, const std::vector<int>& ranks) {
  return concat(name_ranks(ranks), ranks.size() == 1 ? " has" : " have", " ended without closing ",
                ranks.size() == 1 ? "its world" : "their worlds", " (",
                ranks.size() == 1 ? concat("process ", scene.roll_call.peers.at(ranks.front()).process, "; ") : "",
                each(scene, ranks), ")");
}

/// "does not answer any more" with the kernel's state of the process, if known; ranks that have ended.
std::string silence(const Scene& scene, const std::vector<int>& ranks) {
  const PeerView& first = scene.roll_call.peers.at(ranks.front());
  if (ranks.size() == 1 && first.vanished()) {
    return vanishing(scene, ranks);
  }
  const bool known = ranks.size() == 1 && !first.state.empty();
  return concat(name_ranks(ranks), ranks.size() == 1 ? " does" : " do", " not answer any more: ",
                known ? concat("its process ", first.process, ' ', first.state) : "killed, stopped or unreachable",
                " (", each(scene, ranks), ")");
}

/// Advice about the calls of this operation's group, or of one that ranks wait in meanwhile; "" if no group has its own
/// advice.
std::string own_advice(const Scene& scene) {
  std::string advice = advice_for(scene.asker.group);
  for (const auto& [rank, wait] : scene.graph.waits) {
    advice = advice.empty() ? advice_for(wait.group) : advice;
  }
  return advice;
}

PeerError without_store(const std::string& head, const RollCall& roll_call) {
  const std::string host = roll_call.store_host >= 0
                               ? concat("rank ", roll_call.store_host, ", which hosts the rendezvous, ")
                               : "the host of the rendezvous ";
  const std::string look = concat("Look at the output of ",
                                  roll_call.store_host >= 0 ? concat("rank ", roll_call.store_host) : "the launcher");
  if (roll_call.store_host_left) {
    return PeerError(
        "comm", concat(head, host, "has ended without an error."),
        "Every rank must take the same number of steps: look for a shorter data set or an early return there.");
  }
  if (roll_call.store_host_state == kProcessEnded) {
    return PeerError("comm", concat(head, host, "has ended without closing its world."),
                     look + "; restart from the last checkpoint.");
  }
  return PeerError("comm",
                   concat(head, host, "does not answer any more (",
                          roll_call.store_host_state.empty() ? "ended, killed, stopped or unreachable"
                                                             : "its process " + roll_call.store_host_state,
                          ")."),
                   look + "; restart from the last checkpoint.");
}

} // namespace

PeerError explain(const Asker& asker, const OpSummary& op, const Trouble& trouble, const RollCall& roll_call) {
  const double seconds = static_cast<double>(asker.waited.count()) / 1000;
  const std::string head = concat(
      describe(op), " in group \"", asker.group, "\" ",
      trouble.kind == Trouble::Kind::deadline    ? concat("is not done after ", format_seconds(seconds))
      : trouble.kind == Trouble::Kind::on_device ? concat("is not done by its device after ", format_seconds(seconds))
                                                 : std::string("failed"),
      " on rank ", asker.world_rank, " of ", asker.world_size, ": ");
  if (trouble.kind == Trouble::Kind::mismatch && op.is_message()) {
    return PeerError("comm", concat(head, trouble.happened, "."),
                     "Both ranks must send and receive tensors of the same size and type in the same order.");
  }
  if (trouble.kind == Trouble::Kind::by_device) {
    return PeerError("comm", concat(head, "its device reports: ", shorten(trouble.happened), "."),
                     "Look at the device (nvidia-smi, the kernel's log for Xid); restart from the last checkpoint.");
  }
  if (!roll_call.store_answers) {
    return without_store(head, roll_call);
  }
  std::map<int, PeerView> ranks = roll_call.peers;
  ranks[asker.world_rank] = roll_call.own;
  const Scene scene{asker, op, roll_call, follow_waits(ranks, asker.world_rank)};
  const Findings found = look(scene);
  std::vector<std::string> causes;
  std::string next;
  const auto advise = [&](const std::string& advice) {
    if (next.empty()) {
      next = advice;
    }
  };
  const std::string own = own_advice(scene);
  const auto advise_calls = [&](const std::string& advice) { advise(own.empty() ? advice : own); };
  for (const int rank : hidden_culprits(scene, found)) {
    const PeerView& peer = roll_call.peers.at(rank);
    const std::string activity = describe_activity(peer);
    causes.push_back(!peer.answered && !peer.left ? silence(scene, {rank})
                                                  : concat("rank ", rank, " holds up the others, it is ",
                                                           activity.empty() ? "in no operation" : activity));
    advise_calls(
        concat("Look at what rank ", rank, " is doing; if it only needs longer, set TRIREME_TIMEOUT to more seconds."));
  }
  if (!scene.graph.circle.empty()) {
    causes.push_back(name_ranks(scene.graph.circle) + " wait for each other");
    const bool messages =
        std::ranges::any_of(scene.graph.circle, [&](int rank) { return scene.graph.waits.at(rank).op.is_message(); });
    advise_calls(messages
                     ? "Let one of them send before it receives, or use the asynchronous calls and wait afterwards."
                     : "They wait in different groups: all ranks must call the operations of all groups in the same "
                       "order. Look for an if, a return or an exception that only some ranks reach.");
  }
  if (!found.vanished.empty()) {
    causes.push_back(vanishing(scene, found.vanished));
    advise(concat("Look at the output of ", name_ranks(found.vanished),
                  ": a process that was killed, for a lack of memory perhaps, or that called exit(). Restart from the "
                  "last checkpoint."));
  }
  if (!found.silent.empty()) {
    causes.push_back(silence(scene, found.silent));
    const PeerView& first = roll_call.peers.at(found.silent.front());
    const bool stopped = first.state.find("is stopped (") == 0;
    advise(stopped ? concat("kill -CONT ", first.process,
                            " lets it run again; this job has to restart from the last checkpoint.")
                   : concat("Look at the output of ", name_ranks(found.silent),
                            " and for a lack of memory on that host; restart from the last checkpoint."));
  }
  for (const int rank : found.different) {
    const Difference two = *difference(scene, roll_call.peers.at(rank));
    causes.push_back(
        concat("rank ", rank, " called ", with_type(two.theirs), " where this rank called ", with_type(two.mine)));
    advise_calls(
        "All ranks of a group must call the same operations with the same sizes in the same order: look at what "
        "differs between them.");
  }
  for (const auto& [rank, peer] : roll_call.peers) {
    // A different name alone proves nothing: it counts if something is known to be wrong between these two ranks.
    bool suspect = trouble.kind == Trouble::Kind::mismatch;
    for (const auto* ranks : {&found.different, &found.left, &found.absent}) {
      suspect = suspect || std::find(ranks->begin(), ranks->end(), rank) != ranks->end();
    }
    if (const std::string skip = suspect ? left_out(scene, rank, peer) : ""; !skip.empty()) {
      causes.push_back(skip);
      advise_calls(
          "All ranks of a group must call the same operations in the same order: look for an if, a return or an "
          "exception "
          "that only some ranks reach.");
    }
  }
  for (const int rank : found.failed) {
    const PeerView& peer = roll_call.peers.at(rank);
    causes.push_back(
        concat("rank ", rank, peer.left ? " has ended with an error: " : " reports: ", shorten(peer.error)));
    const std::string same = advice_in(peer.error);
    advise(same.empty() ? concat("Look at the output of rank ", rank, "; restart from the last checkpoint.") : same);
  }
  if (!found.left.empty()) {
    causes.push_back(concat(name_ranks(found.left), found.left.size() == 1 ? " has" : " have",
                            " ended without an error (", each(scene, found.left), ")"));
    advise_calls(
        "Every rank must take the same number of steps: look for a shorter data set or an early return there.");
  }
  if (!found.absent.empty()) {
    causes.push_back(concat(name_ranks(found.absent), found.absent.size() == 1 ? " has" : " have", " not come (",
                            each(scene, found.absent), ")"));
    advise_calls(concat("Look at what ", name_ranks(found.absent), found.absent.size() == 1 ? " is" : " are",
                        " doing instead; if it only needs longer, set TRIREME_TIMEOUT to more seconds."));
  }
  if (causes.empty() && trouble.kind == Trouble::Kind::on_device) {
    causes.push_back("all ranks have begun it and answer, so a kernel before it or the link between the devices hangs");
    advise(
        "Look at the devices (nvidia-smi, the kernel's log for Xid); if a step only needs longer, set TRIREME_TIMEOUT "
        "to more seconds.");
  }
  if (causes.empty()) {
    causes.push_back(concat("all ranks have come and answer, so a connection is broken or too slow (",
                            shorten(trouble.happened), ")"));
    advise(
        "Check the network between the hosts; restart from the last checkpoint, or set TRIREME_TIMEOUT to more "
        "seconds.");
  }
  return PeerError("comm", head + join(causes, "; ") + ".", next);
}

} // namespace trireme::comm
