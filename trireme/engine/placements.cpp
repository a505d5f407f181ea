#include <trireme/engine/placements.h>

#include <trireme/base/error.h>
#include <trireme/comm/differences.h>
#include <trireme/engine/same_options.h>

#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace trireme::engine {
namespace {

using bucket::Placement;

struct Said {
  std::string name;
  at::Tensor parameter;
  Placement own;   // set by the layers
  Placement given; // set by the program
};

[[noreturn]] void refuse(const Said& said, const std::string& what, const std::string& next) {
  throw InputError("engine", concat("the placement of parameter \"", said.name, "\" ", what), next);
}

bool says_box(const Placement& placement) {
  return !placement.global_shape.empty();
}

void check(const Said& said, int program_groups) {
  const at::Tensor& parameter = said.parameter;
  const Placement& placement = said.given;
  if (!parameter.requires_grad() && (says_box(placement) || placement.reduce_group != 0)) {
    refuse(said, "splits it or has a reduce group, but it is frozen",
           "Leave the placement of frozen parameters empty.");
  }
  bool fits =
      placement.global_shape.size() == placement.box_offset.size() && placement.parts >= 1 &&
      (placement.global_shape.empty() ? placement.parts == 1 : std::ssize(placement.global_shape) == parameter.dim());
  for (size_t dim = 0; fits && dim < placement.global_shape.size(); ++dim) {
    const int64_t begin = placement.box_offset[dim];
    const int64_t parts = dim == 0 ? placement.parts : 1;
    const int64_t size = parameter.size(static_cast<int64_t>(dim));
    fits = begin >= 0 && size % parts == 0 && placement.global_shape[dim] % parts == 0 &&
           begin + size / parts <= placement.global_shape[dim] / parts;
  }
  if (!fits) {
    refuse(said,
           concat("has global_shape ", at::IntArrayRef(placement.global_shape), " and box_offset ",
                  at::IntArrayRef(placement.box_offset), ", which its shape ", parameter.sizes(), " does not fit"),
           "Give both a number per dimension, with offset + size <= the global size; or leave both empty.");
  }
  if (placement.reduce_group < 0 || placement.reduce_group > program_groups) {
    refuse(said, concat("has reduce_group ", placement.reduce_group, ", but there are ", program_groups + 1, " groups"),
           "Use 0 for the data group, or make more groups in InitializeOptions::reduce_groups, which count from 1.");
  }
}

// Along each dim, only one of the two may cut the whole, or both must agree.
void merge_boxes(const Said& said, Placement& merged) {
  const Placement& own = said.own;
  const Placement& given = said.given;
  if (!says_box(own)) {
    merged.global_shape = given.global_shape;
    merged.box_offset = given.box_offset;
    merged.parts = given.parts;
    return;
  }
  for (size_t dim = 0; dim < own.global_shape.size(); ++dim) {
    const int64_t size = said.parameter.size(static_cast<int64_t>(dim));
    const auto cuts = [&](const Placement& placement) {
      return placement.global_shape[dim] != size || placement.box_offset[dim] != 0 || (dim == 0 && placement.parts > 1);
    };
    const bool same = own.global_shape[dim] == given.global_shape[dim] &&
                      own.box_offset[dim] == given.box_offset[dim] && (dim > 0 || own.parts == given.parts);
    if (cuts(own) && cuts(given) && !same) {
      refuse(said,
             concat("contradicts its layer in dim ", dim, ": this rank has ", size, " from offset ",
                    given.box_offset[dim], " of ", given.global_shape[dim], ", by its layer from offset ",
                    own.box_offset[dim], " of ", own.global_shape[dim]),
             concat("The layer splits dim ", dim, " among the tensor ranks: give global_shape ", size,
                    " and box_offset 0 in it, and boxes along other dims only."));
    }
    if (cuts(given)) {
      merged.global_shape[dim] = given.global_shape[dim];
      merged.box_offset[dim] = given.box_offset[dim];
      merged.parts = dim == 0 ? given.parts : merged.parts;
    }
  }
}

Placement merged(const Said& said, const Parts& parts, bool is_split_by_layer, bool is_split_by_program) {
  if (!said.own.tile.empty() && says_box(said.given)) {
    refuse(said, "has a box, but the parameter is a tile of a zero::TiledLinear",
           "Remove the box, or use a layer without tiles.");
  }
  if (is_split_by_program) {
    return said.given;
  }
  Placement placement = said.own;
  placement.counts_in_norm = said.own.counts_in_norm && said.given.counts_in_norm;
  if (says_box(said.given)) {
    merge_boxes(said, placement);
  }
  if (said.given.reduce_group != 0) {
    const bool is_whole = parts.ranks.tensor.size() > 1 && !is_split_by_layer;
    if (is_whole && parts.agreement.whole.is_sum) {
      refuse(said,
             concat("has reduce_group ", said.given.reduce_group, ", but the ", parts.ranks.tensor.size(),
                    " tensor ranks have it whole, and sequence_parallel must sum its gradients over them too"),
             "Split it among the tensor ranks in its layer (tensor::SplitModule), or switch sequence_parallel off.");
    }
    placement.reduce_group = is_whole
                                 ? parts.agreement.whole.of_program[static_cast<size_t>(said.given.reduce_group) - 1]
                                 : said.given.reduce_group;
  }
  return placement;
}

// Parameters for which the program gives each tensor rank a different box. Collective over them.
std::set<std::string> split_by_program(const std::vector<Said>& all, const comm::Group& tensor) {
  nlohmann::json boxes = nlohmann::json::object();
  for (const Said& said : all) { // a leaf each
    boxes[said.name] = nlohmann::json({said.given.global_shape, said.given.box_offset, said.given.parts}).dump();
  }
  std::set<std::string> names;
  for (const comm::LeafDifference& found : comm::differences(tensor, boxes, "placements of the program")) {
    names.insert(nlohmann::json::json_pointer(found.path).back());
  }
  return names;
}

} // namespace

std::map<const void*, Placement> merged_placements(const Parts& parts, const InitializeOptions& options) {
  std::map<const void*, Placement> placements;
  std::vector<Said> all;
  std::set<const void*> seen;
  for (const auto& item : parts.model.module->named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      all.push_back({item.key(), item.value(), parts.placement_of(item.value()), {}});
    }
  }
  if (!options.placement) {
    for (const Said& said : all) {
      placements.emplace(said.parameter.unsafeGetTensorImpl(), said.own);
    }
    return placements;
  }
  check_together(parts.ranks.everyone, [&] {
    for (Said& said : all) {
      said.given = options.placement(said.name, said.parameter);
      check(said, parts.agreement.program_groups);
    }
  });
  const std::set<std::string> by_program =
      parts.ranks.tensor.size() > 1 ? split_by_program(all, parts.ranks.tensor) : std::set<std::string>();
  check_together(parts.ranks.everyone, [&] {
    for (const Said& said : all) {
      const void* const impl = said.parameter.unsafeGetTensorImpl();
      const bool by_layer = parts.model.split.count(impl) != 0;
      placements.emplace(impl, merged(said, parts, by_layer, !by_layer && by_program.count(said.name) != 0));
    }
  });
  return placements;
}

} // namespace trireme::engine
