#include <trireme/checkpoint/exchange.h>

#include <trireme/base/error.h>
#include <trireme/base/file.h>
#include <trireme/comm/explain.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

namespace trireme::checkpoint {
namespace {

at::Tensor bytes_of(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel())};
}

// Point to point, so that only rank 0 holds all reports of a large world.
std::vector<std::string> gather_on_rank_0(const comm::Group& group, const std::string& mine) {
  at::Tensor lengths = at::empty({group.size()}, at::kLong);
  group.all_gather(lengths, at::full({1}, static_cast<int64_t>(mine.size()), at::kLong), "checkpoint report sizes")
      .wait();
  if (group.rank() != 0) {
    group.send(bytes_of(mine), 0, 0, "checkpoint report").wait();
    return {};
  }
  std::vector<std::string> all{mine};
  for (int rank = 1; rank < group.size(); ++rank) {
    at::Tensor bytes = at::empty({lengths.data_ptr<int64_t>()[rank]}, at::kByte);
    group.recv(bytes, rank, 0, "checkpoint report").wait();
    all.push_back(text_of(bytes));
  }
  return all;
}

std::string from_rank_0(const comm::Group& group, const std::string& text) {
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  group.broadcast(length, 0, "checkpoint decision size").wait();
  at::Tensor bytes = group.rank() == 0 ? bytes_of(text) : at::empty({length.data_ptr<int64_t>()[0]}, at::kByte);
  group.broadcast(bytes, 0, "checkpoint decision").wait();
  return text_of(bytes);
}

// An error text may quote bytes of a damaged file; JSON takes only UTF-8.
std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace

void Problem::raise() const {
  const std::string_view from = part.empty() ? "checkpoint" : std::string_view(part);
  if (is_input) {
    throw InputError(from, happened, next);
  }
  if (is_peer) {
    throw PeerError(from, happened, next);
  }
  throw Error(from, happened, next);
}

Problem Problem::of(const std::exception& error) {
  if (const auto* const of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    Problem problem = of(in_words(*of_files));
    problem.is_input = false; // a failure during a run is no input error
    return problem;
  }
  std::string text = error.what();
  std::string part;
  if (const size_t bracket = text.find("] "); text.rfind('[', 0) == 0 && bracket != std::string::npos) {
    part = text.substr(1, bracket - 1);
    text = text.substr(bracket + 2);
  }
  if (!text.empty() && text.back() == '.') {
    text.pop_back();
  }
  return {text.empty() ? "unknown failure" : text, "", dynamic_cast<const InputError*>(&error) != nullptr, part,
          dynamic_cast<const PeerError*>(&error) != nullptr};
}

nlohmann::json to_json(const Problem& problem) {
  return problem ? nlohmann::json{{"happened", problem.happened},
                                  {"next", problem.next},
                                  {"input", problem.is_input},
                                  {"part", problem.part},
                                  {"peer", problem.is_peer}}
                 : nlohmann::json();
}

Problem problem_from(const nlohmann::json& json) {
  if (json.is_null()) {
    return {};
  }
  return {json.at("happened").get<std::string>(), json.at("next").get<std::string>(), json.at("input").get<bool>(),
          json.at("part").get<std::string>(), json.at("peer").get<bool>()};
}

Problem joined(const std::vector<Problem>& of_ranks) {
  Problem all;
  all.is_input = true;
  std::vector<std::pair<std::string, std::vector<int>>> who; // by problem
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const Problem& one = of_ranks[rank];
    if (one) {
      all.part = who.empty() ? one.part : all.part;
      const std::string what =
          concat(one.part == all.part || one.part.empty() ? "" : concat('[', one.part, "] "), one.happened);
      auto same = std::find_if(who.begin(), who.end(), [&](const auto& other) { return other.first == what; });
      if (same == who.end()) {
        same = who.insert(who.end(), {what, {}});
      }
      same->second.push_back(static_cast<int>(rank));
      all.next = one.next.empty() ? all.next : one.next;
      all.is_input = all.is_input && one.is_input;
      all.is_peer = all.is_peer || one.is_peer;
    }
  }
  for (const auto& [what, ranks] : who) {
    all.happened += concat(all.happened.empty() ? "" : "; ",
                           of_ranks.size() > 1 ? concat(comm::name_ranks(ranks), ": ") : "", what);
  }
  return all;
}

Problem joined(const std::vector<nlohmann::json>& reports) {
  std::vector<Problem> of_ranks;
  for (const nlohmann::json& report : reports) {
    of_ranks.push_back(report.contains("problem") ? problem_from(report["problem"]) : Problem{});
  }
  return joined(of_ranks);
}

nlohmann::json decide(const comm::Group& group, const nlohmann::json& report,
                      const std::function<nlohmann::json(const std::vector<nlohmann::json>& reports)>& on_rank_0) {
  if (group.size() == 1) {
    try {
      return on_rank_0({report});
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      Problem::of(error).raise();
    }
  }
  const std::vector<std::string> texts = gather_on_rank_0(group, dump(report));
  nlohmann::json decision;
  if (group.rank() == 0) {
    try {
      std::vector<nlohmann::json> reports;
      for (const std::string& text : texts) {
        reports.push_back(nlohmann::json::parse(text));
      }
      decision["value"] = on_rank_0(reports);
    } catch (const std::exception& error) {
      decision["problem"] = to_json(Problem::of(error));
    }
  }
  decision = nlohmann::json::parse(from_rank_0(group, dump(decision)));
  if (decision.contains("problem")) {
    problem_from(decision["problem"]).raise();
  }
  return decision["value"];
}

} // namespace trireme::checkpoint
