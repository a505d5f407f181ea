#include <trireme/comm/differences.h>

#include <trireme/base/error.h>
#include <trireme/base/hash.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <set>

namespace trireme::comm {
namespace {

using nlohmann::ordered_json;

// Texts of all ranks, on every rank.
std::vector<std::string> gather(const Group& group, const std::string& mine, std::string_view what) {
  const at::Tensor sizes = at::empty({group.size()}, at::kLong);
  group.all_gather(sizes, at::full({1}, static_cast<int64_t>(mine.size()), at::kLong), what).wait();
  const int64_t* const size = sizes.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(size, size + group.size());
  const at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  const at::Tensor all = at::empty({group.size(), longest}, at::kByte);
  group.all_gather(all, padded, what).wait();
  std::vector<std::string> texts;
  texts.reserve(static_cast<size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank) {
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + rank * longest,
                       static_cast<size_t>(size[rank]));
  }
  return texts;
}

std::vector<LeafDifference> compare(const std::vector<ordered_json>& of_ranks, const std::vector<int>& members) {
  std::vector<LeafDifference> found;
  std::set<std::string> seen;
  for (const ordered_json& document : of_ranks) {
    for (const auto& leaf : document.items()) {
      if (leaf.key().empty() || !seen.insert(leaf.key()).second) { // an empty document has an unnamed leaf
        continue;
      }
      LeafDifference difference{leaf.key(), {}};
      for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
        const auto there = of_ranks[rank].find(leaf.key());
        const std::string text = there == of_ranks[rank].end() ? std::string(kNothing) : there->dump();
        auto value = std::ranges::find(difference.values, text, &LeafDifference::Value::text);
        if (value == difference.values.end()) {
          value = difference.values.insert(value, {text, {}});
        }
        value->ranks.push_back(members[rank]);
      }
      if (difference.values.size() > 1) {
        found.push_back(std::move(difference));
      }
    }
  }
  return found;
}

template <class Json>
std::vector<LeafDifference> differences_of(const Group& group, const Json& document, std::string_view what) {
  if (group.size() == 1) {
    return {};
  }
  const std::string text = document.dump(-1, ' ', false, Json::error_handler_t::replace);
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, static_cast<int64_t>(fnv1a(text)), at::kLong), what).wait();
  const int64_t* const hashes = all.const_data_ptr<int64_t>();
  if (std::all_of(hashes, hashes + group.size(), [&](int64_t hash) { return hash == hashes[0]; })) {
    return {};
  }
  std::vector<ordered_json> of_ranks;
  for (const std::string& of_rank : gather(group, text, what)) {
    of_ranks.push_back(ordered_json::parse(of_rank).flatten());
  }
  return compare(of_ranks, group.members());
}

} // namespace

std::string LeafDifference::ranks() const {
  std::string others;
  for (const int rank : values[1].ranks) {
    others += concat(others.empty() ? "" : ", ", rank);
  }
  return concat(values[1].ranks.size() > 1 ? "ranks " : "rank ", others, " and rank ", values[0].ranks.front());
}

std::vector<LeafDifference> differences(const Group& group, const nlohmann::json& document, std::string_view what) {
  return differences_of(group, document, what);
}

std::vector<LeafDifference> differences(const Group& group, const ordered_json& document, std::string_view what) {
  return differences_of(group, document, what);
}

} // namespace trireme::comm
