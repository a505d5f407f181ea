#include <trireme/extensions/horovod/negotiation.h>

#include <trireme/base/error.h>

#include <algorithm>

namespace trireme::horovod {
namespace {

std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

// Whether a rank that has joined can contribute zeros.
bool may_lack_a_rank(const Request& request) {
  return request.kind == Kind::barrier || (request.kind == Kind::allreduce && request.op != Op::min &&
                                           request.op != Op::max && request.op != Op::product);
}

} // namespace

const Request& Response::any() const {
  return **std::find_if(of_rank.begin(), of_rank.end(), [](const auto& request) { return request.has_value(); });
}

Negotiation::Negotiation(int ranks) : joined_(static_cast<size_t>(ranks)) {}

void Negotiation::add(int rank, Request request, Clock::time_point now) {
  if (request.kind == Kind::join) {
    joined_[static_cast<size_t>(rank)] = true;
    last_joined_ = rank;
    return;
  }
  const auto [at, is_new] = waiting_.try_emplace(
      request.name, PendingOperation{std::vector<std::optional<Request>>(joined_.size()), next_number_, now});
  next_number_ += is_new ? 1 : 0;
  at->second.of_rank[static_cast<size_t>(rank)] = std::move(request);
}

bool Negotiation::complete(const PendingOperation& waiting) const {
  for (size_t rank = 0; rank < joined_.size(); ++rank) {
    if (!waiting.of_rank[rank] && !joined_[rank]) {
      return false;
    }
  }
  return true;
}

std::vector<Response> Negotiation::take_ready() {
  std::vector<std::pair<int64_t, Response>> ready;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (!complete(at->second)) {
      ++at;
      continue;
    }
    Response response{at->first, std::move(at->second.of_rank), {}};
    if (const auto differs = mismatch(response.of_rank)) {
      response.error = *differs;
    } else if (!may_lack_a_rank(response.any()) &&
               !std::all_of(response.of_rank.begin(), response.of_rank.end(),
                            [](const auto& request) { return request.has_value(); })) {
      response.error =
          concat(name_of(response.any().kind), " of \"", at->first, "\", but a rank has joined and has no data for it");
    }
    ready.emplace_back(at->second.number, std::move(response));
    at = waiting_.erase(at);
  }
  std::sort(ready.begin(), ready.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Response> responses;
  for (auto& [number, response] : ready) {
    responses.push_back(std::move(response));
  }
  if (std::find(joined_.begin(), joined_.end(), false) == joined_.end()) {
    Request join;
    join.kind = Kind::join;
    join.root = last_joined_;
    responses.push_back({"join", std::vector<std::optional<Request>>(joined_.size(), join), {}});
    joined_.assign(joined_.size(), false);
  }
  return responses;
}

std::vector<std::string> Negotiation::stalled(std::chrono::duration<double> age, Clock::time_point now) {
  std::vector<std::string> lines;
  for (auto& [name, waiting] : waiting_) {
    if (waiting.told || now - waiting.since < age) {
      continue;
    }
    waiting.told = true;
    std::vector<int> there, missing;
    const Request* request = nullptr;
    for (size_t rank = 0; rank < joined_.size(); ++rank) {
      if (waiting.of_rank[rank]) {
        request = &*waiting.of_rank[rank];
        there.push_back(static_cast<int>(rank));
      } else if (!joined_[rank]) {
        missing.push_back(static_cast<int>(rank));
      }
    }
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - waiting.since).count();
    lines.push_back(concat(name_of(request->kind), " of \"", name, "\" has waited ", seconds, " s: ", list_of(there),
                           there.size() == 1 ? " asks" : " ask", " for it, ", list_of(missing),
                           missing.size() == 1 ? " does not" : " do not"));
  }
  return lines;
}

std::chrono::duration<double> Negotiation::oldest(Clock::time_point now) const {
  std::chrono::duration<double> oldest(0);
  for (const auto& [name, waiting] : waiting_) {
    oldest = std::max<std::chrono::duration<double>>(oldest, now - waiting.since);
  }
  return oldest;
}

} // namespace trireme::horovod
