#pragma once

#include <trireme/kernels/cuda/warp_block.cuh>

#include <cuda_runtime.h>

#include <cstdint>

// How the segments of a step share the blocks of one launch.

namespace trireme::kernels::cuda {
namespace {

constexpr int64_t kMostBlocks = 4096;
constexpr int kThreads = 256;
constexpr int kBlocksAtOnce = 3; ///< of a multiprocessor, at least: up to 80 registers, and so no spills
constexpr int64_t kOfBlock = kThreads / kLanes * kStateBlock; ///< elements of a block of threads at a time

inline unsigned blocks_for(int64_t elements, int64_t most = kMostBlocks) {
  const int64_t blocks = (elements + kOfBlock - 1) / kOfBlock;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

inline bool is_aligned(const StateArray& state) {
  return is_aligned(state.values, state.type);
}
inline bool is_aligned(const StepArgs& args) {
  return is_aligned(args.param, Element::f32) && is_aligned(args.grad, args.grad_type) &&
         is_aligned(args.param_copy, args.copy_type);
}
template <class Rule, class Args>
inline bool is_aligned(const Args& args) {
  bool all = is_aligned(static_cast<const StepArgs&>(args));
  for (int i = 0; i < Rule::kStates; ++i) {
    all = all && is_aligned(Rule::state(args, i));
  }
  return all;
}

constexpr int kMostParts = 48;
constexpr int kMostRows = 8;

/// Segments that one launch steps, and how its blocks are shared among them: in the launch's parameters, which are in
/// constant memory, so nothing is uploaded. With the arguments within the 4 KiB that all devices take.
struct Parts {
  struct Part {
    Segment segment;
    int first_block; ///< of the grid
    int blocks;
    int row;      ///< of `rows`; below 0: the arguments have the numbers
    bool aligned; ///< all arrays, at its first element
  };
  Part parts[kMostParts];
  StepScalars rows[kMostRows];
  int count = 0;
  int blocks = 0;
  int used_rows = 0;
};

/// The part that this block steps.
__device__ inline const Parts::Part& own_part(const Parts& parts) {
  int first = 0;
  for (int last = parts.count; last - first > 1;) {
    const int middle = (first + last) / 2;
    (static_cast<int>(blockIdx.x) < parts.parts[middle].first_block ? last : first) = middle;
  }
  return parts.parts[first];
}

template <class Args>
__device__ inline const StepScalars* own_row(const Args& args, const Parts& parts, const Parts::Part& part) {
  return args.step_scalars != nullptr ? args.step_scalars + part.segment.row
         : part.row >= 0              ? parts.rows + part.row
                                      : nullptr;
}

/// Calls f(block) for this warp's elements of a part, counted from the part's first.
template <class F>
__device__ inline void each_block_of(const Parts::Part& part, const F& f) {
  const int64_t warps = kThreads / kLanes;
  const int64_t count = part.segment.end - part.segment.begin;
  const int64_t block = static_cast<int>(blockIdx.x) - part.first_block;
  for (int64_t first = (block * warps + threadIdx.x / kLanes) * kStateBlock; first < count;
       first += part.blocks * warps * kStateBlock) {
    f(WarpBlock(first, count, part.aligned));
  }
}

/// Calls launch(parts) for as many segments at a time as fit, with up to `most` blocks each and in all.
template <class Rule, class Args, class F>
void in_launches(const Args& args, const Segment* segments, int64_t count, int64_t most, const F& launch) {
  Parts parts;
  int64_t rows[kMostRows];
  const auto flush = [&] {
    if (parts.count > 0) {
      launch(parts);
    }
    parts = Parts();
  };
  for (int64_t i = 0; i < count; ++i) {
    const Segment& segment = segments[i];
    if (segment.begin >= segment.end) {
      continue;
    }
    const int blocks = static_cast<int>(blocks_for(segment.end - segment.begin, most));
    const auto find_row = [&] {
      int row = 0;
      while (row < parts.used_rows && rows[row] != segment.row) {
        ++row;
      }
      return row;
    };
    if (parts.count == kMostParts || parts.blocks + blocks > kMostBlocks || find_row() == kMostRows) {
      flush();
    }
    int row = -1;
    if (args.step_scalars == nullptr && args.host_rows != nullptr) {
      row = find_row();
      if (row == parts.used_rows) {
        rows[row] = segment.row;
        parts.rows[row] = args.host_rows[segment.row];
        ++parts.used_rows;
      }
    }
    parts.parts[parts.count++] = {segment, parts.blocks, blocks, row,
                                  is_aligned<Rule>(args_of(args, segment, nullptr))};
    parts.blocks += blocks;
  }
  flush();
}

} // namespace
} // namespace trireme::kernels::cuda
