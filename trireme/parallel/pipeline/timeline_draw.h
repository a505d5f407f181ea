#pragma once

#include <trireme/parallel/pipeline/timeline.h>

#include <string>

namespace trireme::pipeline {

/// Draws one row per stage, at most `columns` wide (at least 40): `3` is the forward of micro-batch 3, `(3)` its
/// backward, `[3]` its input gradient, `w3` its weight gradient. A letter after the number is the chunk; dots
/// are idle time. Cells too narrow for that become = # < w, and a line explains it. A legend and the figures
/// follow.
std::string draw_text(const Timeline& timeline, int columns = 120);

/// Draws a self-contained SVG image, without scripts, external fonts or files. Hovering over a cell shows its
/// computation and duration.
std::string draw_svg(const Timeline& timeline, const std::string& title);

} // namespace trireme::pipeline
