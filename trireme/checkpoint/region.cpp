#include <trireme/checkpoint/region.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <map>
#include <utility>

namespace trireme::checkpoint {
namespace {

constexpr size_t kMaxBoxes = 1024;

using Box = std::pair<std::vector<int64_t>, std::vector<int64_t>>;

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    numel *= size;
  }
  return numel;
}

int64_t box_numel(const Region& region, const std::vector<int64_t>& shape) {
  return product(region.box_size.empty() ? shape : region.box_size);
}

bool overlap(const Box& a, const Box& b) {
  for (size_t dim = 0; dim < a.first.size(); ++dim) {
    if (a.first[dim] + a.second[dim] <= b.first[dim] || b.first[dim] + b.second[dim] <= a.first[dim]) {
      return false;
    }
  }
  return true;
}

std::string text_of(const std::vector<int64_t>& numbers) {
  std::string text = "[";
  for (const int64_t number : numbers) {
    text += concat(text.size() > 1 ? ", " : "", number);
  }
  return text + "]";
}

} // namespace

std::optional<int64_t> checked_numel(const std::vector<int64_t>& shape) {
  int64_t nonzero = 1;
  bool is_empty = false;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(nonzero, std::max<int64_t>(size, 1), &nonzero)) {
      return std::nullopt;
    }
    is_empty = is_empty || size == 0;
  }
  return is_empty ? 0 : nonzero;
}

std::string region_problem(const Region& region, const std::vector<int64_t>& shape) {
  if (!checked_numel(shape)) {
    return concat("shape ", text_of(shape), " is negative or too large");
  }
  if (region.box_offset.size() != region.box_size.size() || (!region.box_size.empty() && region.box_size.size() != shape.size())) {
    return concat("box at ", text_of(region.box_offset), " of ", text_of(region.box_size), " does not have the dims of shape ",
                  text_of(shape));
  }
  for (size_t dim = 0; dim < region.box_size.size(); ++dim) {
    if (region.box_offset[dim] < 0 || region.box_size[dim] < 0 || region.box_size[dim] > shape[dim] ||
        region.box_offset[dim] > shape[dim] - region.box_size[dim]) {
      return concat("box at ", text_of(region.box_offset), " of ", text_of(region.box_size), " lies outside of shape ", text_of(shape));
    }
  }
  const int64_t numel = box_numel(region, shape);
  if (region.begin < 0 || region.begin > region.end || region.end > numel) {
    return concat("elements [", region.begin, ", ", region.end, ") lie outside of its ", numel);
  }
  return "";
}

std::vector<Run> runs(const Region& region, const std::vector<int64_t>& shape, int64_t begin, int64_t end) {
  std::vector<Run> found;
  if (region.begin >= region.end || begin >= end) {
    return found;
  }
  // Row: what is contiguous in both; the dims before `row_dim` count the rows.
  const size_t dims = region.box_size.size();
  size_t row_dim = dims == 0 ? 0 : dims - 1;
  while (row_dim > 0 && region.box_size[row_dim] == shape[row_dim]) {
    --row_dim;
  }
  std::vector<int64_t> stride(dims, 1);
  for (size_t dim = dims; dim-- > 1;) {
    stride[dim - 1] = stride[dim] * shape[dim];
  }
  int64_t row_numel = box_numel(region, shape);
  for (size_t dim = 0; dim < row_dim; ++dim) {
    row_numel /= region.box_size[dim];
  }
  for (int64_t row = region.begin / row_numel; row <= (region.end - 1) / row_numel; ++row) {
    int64_t start = dims == 0 ? 0 : region.box_offset[row_dim] * stride[row_dim];
    int64_t rest = row;
    for (size_t dim = row_dim; dim-- > 0;) {
      start += (region.box_offset[dim] + rest % region.box_size[dim]) * stride[dim];
      rest /= region.box_size[dim];
    }
    if (start >= end) {
      break;
    }
    // The row's elements: in the box [row * row_numel, ...), tensor elements [start, ...).
    const int64_t shift = start - row * row_numel;
    const int64_t first = std::max({row * row_numel, region.begin, begin - shift});
    const int64_t last = std::min({(row + 1) * row_numel, region.end, end - shift});
    if (first < last) {
      found.push_back({first + shift, first - region.begin, last - first});
    }
  }
  return found;
}

std::string coverage_problem(const std::vector<Region>& regions, const std::vector<int64_t>& shape) {
  const int64_t numel = product(shape);
  if (numel == 0) {
    return "";
  }
  std::map<Box, std::vector<std::pair<int64_t, int64_t>>> boxes;
  for (const Region& region : regions) {
    if (region.begin < region.end) {
      const bool is_whole = region.box_size.empty() || region.box_size == shape;
      boxes[is_whole ? Box{std::vector<int64_t>(shape.size(), 0), shape} : Box{region.box_offset, region.box_size}].emplace_back(
          region.begin, region.end);
    }
  }
  if (boxes.size() > kMaxBoxes) {
    return concat("is cut into ", boxes.size(), " boxes, at most ", kMaxBoxes, " are supported");
  }
  int64_t covered = 0;
  for (auto at = boxes.begin(); at != boxes.end(); ++at) {
    for (auto other = boxes.begin(); other != at; ++other) {
      if (overlap(at->first, other->first)) {
        return concat("is stored twice where the boxes at ", text_of(other->first.first), " of ", text_of(other->first.second), " and at ",
                      text_of(at->first.first), " of ", text_of(at->first.second), " overlap");
      }
    }
    auto& ranges = at->second;
    std::sort(ranges.begin(), ranges.end());
    const int64_t in_box = product(at->first.second);
    const std::string of = boxes.size() == 1 ? "" : concat(" of the box at ", text_of(at->first.first));
    int64_t expected = 0;
    ranges.emplace_back(in_box, in_box);
    for (const auto& [first, last] : ranges) {
      if (first > expected) {
        return concat("lacks elements [", expected, ", ", first, ")", of);
      }
      if (first < expected) {
        return concat("has elements [", first, ", ", std::min(last, expected), ")", of, " twice");
      }
      expected = last;
    }
    covered += in_box;
  }
  if (covered < numel) {
    return concat("lacks ", numel - covered, " of its ", numel, " elements");
  }
  return "";
}

} // namespace trireme::checkpoint
