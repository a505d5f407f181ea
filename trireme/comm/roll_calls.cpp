#include <trireme/comm/roll_calls.h>

#include <trireme/comm/hang_report.h>

#include <nlohmann/json.hpp>

namespace trireme::comm {
namespace {

// Reads a rank's published view; it counts as answered if it was written after the request.
void read(Store& store, int rank, const RollCalls::Question& question, PeerView& peer) {
  const auto text = store.find(progress_key(rank));
  if (!text) {
    return;
  }
  const auto message = nlohmann::json::parse(*text);
  const bool answered = message.at("pulse").get<int64_t>() >= question.pulse;
  peer = view_from_json(message);
  peer.answered = answered;
  const auto found = peer.groups.find(question.key);
  if (found != peer.groups.end()) {
    peer.progress = found->second.progress;
  }
}

} // namespace

std::string progress_key(int rank) {
  return "progress/" + std::to_string(rank);
}

int64_t raise_pulse(Store& store) {
  return store.add("pulse", 1);
}

std::shared_ptr<RollCalls::Question> RollCalls::add(const std::vector<int>& ranks, const std::string& key,
                                                    Clock::time_point deadline, bool stacks) {
  auto question = std::make_shared<Question>();
  question->key = key;
  question->stacks = stacks;
  question->result.store_host = store_host_;
  for (const int rank : ranks) {
    if (rank != rank_) {
      question->result.peers[rank] = {};
    }
  }
  question->deadline = deadline;
  questions_.push_back(question);
  return question;
}

void RollCalls::postpone(Clock::duration by) {
  for (const auto& question : questions_) {
    question->deadline += by;
  }
}

void RollCalls::step(Store& store, const std::set<int>& dead) {
  std::vector<std::shared_ptr<Question>> open;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(questions_, [](const auto& question) { return question->answered || question->given_up; });
    open = questions_;
  }
  for (const auto& question : open) {
    if (question->pulse == 0) {
      if (question->stacks) {
        store.add("hang/asked", 1);
      }
      question->pulse = raise_pulse(store);
    }
    bool all = true;
    for (auto& [rank, peer] : question->result.peers) {
      if (!peer.answered && !peer.left) {
        read(store, rank, *question, peer);
        all = all && (peer.answered || peer.left || dead.count(rank) != 0);
      }
    }
    if (all || Clock::now() >= question->deadline) {
      look_at_silent(question->result, own_place_);
      const std::lock_guard lock(mutex_);
      question->answered = true;
      changed_.notify_all();
    }
  }
}

} // namespace trireme::comm
