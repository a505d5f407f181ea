#include <trireme/extensions/horovod/request.h>

#include <trireme/base/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme::horovod {
namespace {

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

// A property that must be the same on all ranks, as name and value.
using Trait = std::pair<const char*, std::string>;

std::vector<Trait> traits_of(const Request& request) {
  std::vector<Trait> traits = {{"operation", name_of(request.kind)}};
  if (request.kind == Kind::barrier || request.kind == Kind::join) {
    return traits;
  }
  traits.emplace_back("type", c10::toString(request.type));
  traits.emplace_back("number of tensors", std::to_string(request.shapes.size()));
  traits.emplace_back("device", request.on_device ? "a GPU" : "the host");
  const bool rows_differ = request.kind == Kind::allgather || request.kind == Kind::alltoall;
  for (const Shape& shape : request.shapes) {
    traits.emplace_back(rows_differ ? "shape after the first dim" : "shape",
                        text_of(rows_differ && !shape.empty() ? Shape(shape.begin() + 1, shape.end()) : shape));
  }
  if (request.kind == Kind::allreduce || request.kind == Kind::reducescatter) {
    traits.emplace_back("op", name_of(request.op));
    traits.emplace_back("prescale factor", concat(request.prescale));
    traits.emplace_back("postscale factor", concat(request.postscale));
  }
  if (request.kind == Kind::broadcast) {
    traits.emplace_back("root rank", std::to_string(request.root));
  }
  return traits;
}

} // namespace

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"allreduce",     "allgather", "broadcast", "alltoall",
                                   "reducescatter", "barrier",   "join"};
  return names[static_cast<size_t>(kind)];
}

const char* name_of(Op op) {
  constexpr const char* names[] = {"Average", "Sum", "Min", "Max", "Product", "Adasum"};
  return names[static_cast<size_t>(op)];
}

nlohmann::json Request::to_json() const {
  return {static_cast<int>(kind),
          name,
          static_cast<int>(type),
          shapes,
          static_cast<int>(op),
          root,
          prescale,
          postscale,
          splits,
          on_device};
}

Request Request::from_json(const nlohmann::json& json) {
  Request request;
  request.kind = static_cast<Kind>(json.at(0).get<int>());
  request.name = json.at(1);
  request.type = static_cast<c10::ScalarType>(json.at(2).get<int>());
  request.shapes = json.at(3).get<std::vector<Shape>>();
  request.op = static_cast<Op>(json.at(4).get<int>());
  request.root = json.at(5);
  request.prescale = json.at(6);
  request.postscale = json.at(7);
  request.splits = json.at(8).get<std::vector<int64_t>>();
  request.on_device = json.at(9);
  return request;
}

std::optional<std::string> mismatch(const std::vector<std::optional<Request>>& of_rank) {
  const auto first =
      std::find_if(of_rank.begin(), of_rank.end(), [](const auto& request) { return request.has_value(); });
  if (first == of_rank.end()) {
    return std::nullopt;
  }
  const std::vector<Trait> expected = traits_of(**first);
  for (auto other = first + 1; other != of_rank.end(); ++other) {
    if (!*other) {
      continue;
    }
    const std::vector<Trait> found = traits_of(**other);
    for (size_t i = 0; i < std::min(expected.size(), found.size()); ++i) {
      if (expected[i] != found[i]) {
        return concat("the ", expected[i].first, " of \"", (*first)->name, "\" is ", expected[i].second, " on rank ",
                      first - of_rank.begin(), " and ", found[i].second, " on rank ", other - of_rank.begin());
      }
    }
  }
  return std::nullopt;
}

} // namespace trireme::horovod
