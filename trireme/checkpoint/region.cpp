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

/// The rows of a non-empty region: runs that are contiguous in the tensor and in the region. Their starts in the tensor
/// increase.
class Rows {
 public:
  Rows(const Region& region, const std::vector<int64_t>& shape)
      : region_(region), row_numel_(box_numel(region, shape)) {
    const size_t dims = region.box_size.size();
    size_t row_dim = dims == 0 ? 0 : dims - 1;
    while (row_dim > 0 && region.box_size[row_dim] == shape[row_dim]) {
      --row_dim;
    }
    int64_t stride = 1;
    strides_.resize(row_dim); // strides of the dims before `row_dim`, which count the rows
    for (size_t dim = dims; dim-- > 0;) {
      offset_ = dim == row_dim ? region.box_offset[dim] * stride : offset_;
      if (dim < row_dim) {
        strides_[dim] = stride;
        row_numel_ /= region.box_size[dim];
        rows_ *= region.box_size[dim];
      }
      stride *= shape[dim];
    }
    first_ = region.begin / row_numel_;
    last_ = (region.end - 1) / row_numel_ + 1;
  }

  int64_t first() const { return first_; }
  int64_t last() const { return last_; }
  /// The first row with elements of the tensor from `begin` on; last() if there is none. Computed by division, in
  /// constant time.
  int64_t first_from(int64_t begin) const { return std::clamp(starting_upto(begin - row_numel_), first_, last_); }
  Run run(int64_t row) const {
    int64_t start = offset_;
    int64_t rest = row;
    for (size_t dim = strides_.size(); dim-- > 0;) {
      start += (region_.box_offset[dim] + rest % region_.box_size[dim]) * strides_[dim];
      rest /= region_.box_size[dim];
    }
    const int64_t begin = std::max(row * row_numel_, region_.begin);
    const int64_t end = std::min((row + 1) * row_numel_, region_.end);
    return {start + begin - row * row_numel_, begin - region_.begin, end - begin};
  }

 private:
  // Rows of the box that start at or before this element of the tensor.
  int64_t starting_upto(int64_t element) const {
    int64_t rest = element - offset_;
    int64_t inner = rows_;
    int64_t count = 0;
    if (rest < 0) {
      return 0;
    }
    for (size_t dim = 0; dim < strides_.size(); ++dim) {
      inner /= region_.box_size[dim];
      const int64_t place = rest / strides_[dim] - region_.box_offset[dim];
      rest %= strides_[dim];
      if (place < 0 || place >= region_.box_size[dim]) {
        return count + (place < 0 ? 0 : region_.box_size[dim] * inner);
      }
      count += place * inner;
    }
    return count + 1;
  }

  const Region& region_;
  int64_t row_numel_;
  int64_t rows_ = 1;
  int64_t offset_ = 0;
  std::vector<int64_t> strides_;
  int64_t first_ = 0;
  int64_t last_ = 0;
};

bool are_apart(const Region& a, const Region& b) {
  return !a.box_size.empty() && !b.box_size.empty() && !overlap({a.box_offset, a.box_size}, {b.box_offset, b.box_size});
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
  if (region.box_offset.size() != region.box_size.size() ||
      (!region.box_size.empty() && region.box_size.size() != shape.size())) {
    return concat("box at ", text_of(region.box_offset), " of ", text_of(region.box_size),
                  " does not have the dims of shape ", text_of(shape));
  }
  for (size_t dim = 0; dim < region.box_size.size(); ++dim) {
    if (region.box_offset[dim] < 0 || region.box_size[dim] < 0 || region.box_size[dim] > shape[dim] ||
        region.box_offset[dim] > shape[dim] - region.box_size[dim]) {
      return concat("box at ", text_of(region.box_offset), " of ", text_of(region.box_size), " lies outside of shape ",
                    text_of(shape));
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
  const Rows rows(region, shape);
  for (int64_t row = rows.first_from(begin); row < rows.last(); ++row) {
    const Run run = rows.run(row);
    if (run.in_tensor >= end) {
      break;
    }
    const int64_t cut = std::max<int64_t>(begin - run.in_tensor, 0);
    const int64_t numel = std::min(run.numel, end - run.in_tensor) - cut;
    if (numel > 0) {
      found.push_back({run.in_tensor + cut, run.in_shard + cut, numel});
    }
  }
  return found;
}

std::vector<CommonRun> common_runs(const Region& one, const Region& other, const std::vector<int64_t>& shape) {
  std::vector<CommonRun> found;
  if (one.begin >= one.end || other.begin >= other.end || are_apart(one, other)) {
    return found;
  }
  const Rows ones(one, shape);
  const Rows others(other, shape);
  int64_t of_one = ones.first();
  int64_t of_other = others.first();
  while (of_one < ones.last() && of_other < others.last()) {
    const Run a = ones.run(of_one);
    const Run b = others.run(of_other);
    const int64_t a_end = a.in_tensor + a.numel;
    const int64_t b_end = b.in_tensor + b.numel;
    const int64_t begin = std::max(a.in_tensor, b.in_tensor);
    const int64_t end = std::min(a_end, b_end);
    if (begin < end) {
      found.push_back({a.in_shard + begin - a.in_tensor, b.in_shard + begin - b.in_tensor, end - begin});
    }
    // The row that ends first moves on to where the other may have elements.
    if (a_end <= b_end) {
      of_one = std::max(of_one + 1, ones.first_from(b.in_tensor));
    }
    if (b_end <= a_end) {
      of_other = std::max(of_other + 1, others.first_from(a.in_tensor));
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
      boxes[is_whole ? Box{std::vector<int64_t>(shape.size(), 0), shape} : Box{region.box_offset, region.box_size}]
          .emplace_back(region.begin, region.end);
    }
  }
  if (boxes.size() > kMaxBoxes) {
    return concat("is cut into ", boxes.size(), " boxes, at most ", kMaxBoxes, " are supported");
  }
  int64_t covered = 0;
  for (auto at = boxes.begin(); at != boxes.end(); ++at) {
    for (auto other = boxes.begin(); other != at; ++other) {
      if (overlap(at->first, other->first)) {
        return concat("is stored twice where the boxes at ", text_of(other->first.first), " of ",
                      text_of(other->first.second), " and at ", text_of(at->first.first), " of ",
                      text_of(at->first.second), " overlap");
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
