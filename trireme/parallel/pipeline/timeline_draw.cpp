#include <trireme/parallel/pipeline/timeline_draw.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <set>
#include <sstream>

namespace trireme::pipeline {
namespace {

struct Look {
  const char* before;
  const char* after;
  char filled; // if the number does not fit
  const char* meaning;
  int red, green, blue;
};

const Look& look_of(Op op) {
  static constexpr Look kForward{"", "", '=', "forward", 66, 133, 214};
  static constexpr Look kBackward{"(", ")", '#', "backward", 46, 158, 91};
  static constexpr Look kInput{"[", "]", '<', "input gradient", 230, 145, 56};
  static constexpr Look kWeight{"w", "", 'w', "weight gradient", 142, 99, 186};
  switch (op) {
    case Op::backward:
      return kBackward;
    case Op::backward_input:
      return kInput;
    case Op::backward_weight:
      return kWeight;
    default:
      return kForward;
  }
}

std::string fixed(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

// "4", "2.75"
std::string short_number(double value) {
  std::string text = fixed(value, 2);
  text.erase(text.find_last_not_of('0') + 1);
  return text.back() == '.' ? text.substr(0, text.size() - 1) : text;
}

std::string number_of(const TimelineSpan& span, int chunks) {
  std::string text = std::to_string(span.micro_batch);
  if (chunks > 26) {
    text += concat(':', span.chunk);
  } else if (chunks > 1) {
    text += static_cast<char>('a' + span.chunk);
  }
  return text;
}

std::string label_of(const TimelineSpan& span, int chunks) {
  const Look& look = look_of(span.op);
  return concat(look.before, number_of(span, chunks), look.after);
}

std::vector<Op> ops_in(const Timeline& timeline) {
  std::set<Op> ops;
  for (const TimelineSpan& span : timeline.spans) {
    ops.insert(span.op);
  }
  return {ops.begin(), ops.end()};
}

std::string figures(const Timeline& timeline) {
  std::vector<std::string> peaks;
  for (const double peak : timeline.peak_in_flight) {
    peaks.push_back(short_number(peak));
  }
  return concat("bubble ", fixed(100 * timeline.bubble, 1), " %, ", short_number(timeline.total), ' ', timeline.unit,
                ", micro-batches in flight at most ", join(peaks, " "), peaks.size() > 1 ? " (by stage)" : "");
}

// Columns per unit of time.
struct Scale {
  double columns = 0;
  size_t dot = 1; // an idle stretch shows one dot per this many columns
};

// A simulated step has equal cells: an integer number of columns for each keeps rows comparable. A measured one is
// scaled to the available width.
Scale choose_scale(const Timeline& timeline, double room) {
  double cell = timeline.total;
  double comfortable = 0; // columns that fit every label and a space after it
  for (const TimelineSpan& span : timeline.spans) {
    const double width = span.end - span.begin;
    if (width > 0) {
      cell = std::min(cell, width);
      comfortable =
          std::max(comfortable, static_cast<double>(label_of(span, timeline.shape.chunks).size() + 1) / width);
    }
  }
  if (cell <= 0) {
    return {};
  }
  const auto on_grid = [&](double time) { return std::abs(time / cell - std::round(time / cell)) < 1e-6; };
  const bool plan = std::all_of(timeline.spans.begin(), timeline.spans.end(),
                                [&](const auto& span) { return on_grid(span.begin) && on_grid(span.end); });
  const double whole = std::min(std::ceil(comfortable * cell), std::floor(room * cell / timeline.total));
  if (plan && whole >= 1) {
    return {whole / cell, static_cast<size_t>(whole)};
  }
  return {std::min(comfortable, room / timeline.total), 1};
}

void put(std::string& row, size_t begin, size_t end, const std::string& label, char filled, bool& cut) {
  const size_t width = end - begin;
  if (label.size() + 1 <= width || (label.size() == width && width > 1)) {
    row.replace(begin, width, label + std::string(width - label.size(), ' '));
  } else {
    row.replace(begin, width, width, filled);
    cut = true;
  }
}

} // namespace

std::string draw_text(const Timeline& timeline, int columns) {
  const std::string last = std::to_string(timeline.shape.stages - 1);
  const size_t margin = 6 + last.size() + 2; // "stage 3 |"
  const double room = std::max(40, columns) - static_cast<double>(margin) - 1;
  const auto [scale, dot] = choose_scale(timeline, room);
  const auto width = static_cast<size_t>(std::lround(timeline.total * scale));

  std::string idle(width, ' ');
  for (size_t i = 0; i < width; i += dot) {
    idle[i] = '.';
  }
  std::vector<std::string> rows(timeline.shape.stages, idle);
  bool cut = false;
  for (const TimelineSpan& span : timeline.spans) {
    const auto begin = std::min(static_cast<size_t>(std::lround(span.begin * scale)), width);
    const auto end = std::min(static_cast<size_t>(std::lround(span.end * scale)), width);
    if (begin < end) {
      put(rows[span.stage], begin, end, label_of(span, timeline.shape.chunks), look_of(span.op).filled, cut);
    }
  }
  std::string text;
  for (int stage = 0; stage < timeline.shape.stages; ++stage) {
    const std::string name = std::to_string(stage);
    text += concat("stage ", std::string(last.size() - name.size(), ' '), name, " |", rows[stage], "|\n");
  }
  std::vector<std::string> legend;
  for (const Op op : ops_in(timeline)) {
    const Look& look = look_of(op);
    legend.push_back(concat(look.before, '3', look.after, ' ', look.meaning));
  }
  std::vector<std::string> letters;
  std::vector<std::string> numbers;
  for (int chunk = 0; chunk < timeline.shape.chunks; ++chunk) {
    letters.emplace_back(1, static_cast<char>('a' + chunk));
    numbers.push_back(std::to_string(chunk));
  }
  text +=
      concat("\n", join(legend, "  "), " of micro-batch 3  . idle",
             timeline.shape.chunks > 1 ? concat("  ", join(letters, ", "), ": chunk ", join(numbers, ", ")) : "", '\n');
  if (cut) {
    text +=
        "Scaled to fit; cells too narrow for a number: = forward, # backward, < input gradient, w weight gradient.\n";
  }
  return text + figures(timeline) + '\n';
}

namespace {

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return safe;
}

// Later chunks are paler.
std::string colour(Op op, int chunk, int chunks) {
  const Look& look = look_of(op);
  const double pale = chunks > 1 ? 0.6 * chunk / (chunks - 1) : 0;
  const auto mix = [&](int value) { return static_cast<int>(std::lround(value + (255 - value) * pale)); };
  return concat("rgb(", mix(look.red), ',', mix(look.green), ',', mix(look.blue), ')');
}

constexpr double kMargin = 76;
constexpr double kTop = 64;
constexpr double kRow = 34;
constexpr double kChart = 1100;
constexpr double kCharacter = 6.2; // width of a digit at 11 px

double nice_tick(double total) {
  const double rough = std::max(total, 1e-9) / 10;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (rough <= step * power) {
      return step * power;
    }
  }
  return 10 * power;
}

void draw_axis(std::ostringstream& svg, const Timeline& timeline, double scale) {
  const double bottom = kTop + kRow * timeline.shape.stages;
  const double tick = nice_tick(timeline.total);
  for (double t = 0; t <= timeline.total + tick * 1e-6; t += tick) {
    const double x = kMargin + t * scale;
    svg << "<line x1=\"" << x << "\" y1=\"" << kTop << "\" x2=\"" << x << "\" y2=\"" << bottom + 4
        << "\" stroke=\"#ddd\"/>"
        << "<text x=\"" << x << "\" y=\"" << bottom + 17 << "\" text-anchor=\"middle\">" << short_number(t)
        << "</text>\n";
  }
  svg << "<text x=\"" << kMargin + kChart << "\" y=\"" << bottom + 32 << "\" text-anchor=\"end\">time in "
      << escaped(timeline.unit) << "</text>\n";
  for (int stage = 0; stage < timeline.shape.stages; ++stage) {
    svg << "<text x=\"" << kMargin - 10 << "\" y=\"" << kTop + kRow * (stage + 0.5) + 4
        << "\" text-anchor=\"end\">stage " << stage << "</text>\n"
        << "<rect x=\"" << kMargin << "\" y=\"" << kTop + kRow * stage + 3 << "\" width=\"" << kChart << "\" height=\""
        << kRow - 6 << "\" fill=\"#f4f4f4\"/>\n";
  }
}

void draw_span(std::ostringstream& svg, const Timeline& timeline, const TimelineSpan& span, double scale) {
  const double x = kMargin + span.begin * scale;
  const double y = kTop + kRow * span.stage + 3;
  const double width = std::max(0.3, (span.end - span.begin) * scale);
  svg << "<g><title>" << look_of(span.op).meaning << " of micro-batch " << span.micro_batch << ", chunk " << span.chunk
      << ": " << short_number(span.begin) << " to " << short_number(span.end) << ' ' << escaped(timeline.unit)
      << "</title><rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << kRow - 6
      << "\" fill=\"" << colour(span.op, span.chunk, timeline.shape.chunks) << "\" stroke=\"#fff\" stroke-width=\""
      << (width > 4 ? 1 : 0) << "\"/>";
  const std::string label = label_of(span, timeline.shape.chunks);
  if (static_cast<double>(label.size()) * kCharacter + 2 < width) {
    svg << "<text x=\"" << x + width / 2 << "\" y=\"" << y + kRow / 2 + 1 << "\" text-anchor=\"middle\" fill=\"#000\">"
        << label << "</text>";
  }
  svg << "</g>\n";
}

void draw_legend(std::ostringstream& svg, const Timeline& timeline) {
  double x = kMargin;
  const double y = kTop + kRow * timeline.shape.stages + 42;
  for (const Op op : ops_in(timeline)) {
    for (int chunk = 0; chunk < std::min(timeline.shape.chunks, 4); ++chunk) {
      const std::string name =
          timeline.shape.chunks == 1 ? look_of(op).meaning : concat(look_of(op).meaning, ", chunk 0");
      const std::string text = chunk == 0 ? name : std::to_string(chunk);
      svg << "<rect x=\"" << x << "\" y=\"" << y - 10 << "\" width=\"14\" height=\"12\" fill=\""
          << colour(op, chunk, timeline.shape.chunks) << "\"/><text x=\"" << x + 20 << "\" y=\"" << y << "\">" << text
          << "</text>\n";
      x += 34 + static_cast<double>(text.size()) * kCharacter;
    }
  }
  svg << "<rect x=\"" << x << "\" y=\"" << y - 10
      << "\" width=\"14\" height=\"12\" fill=\"#f4f4f4\" stroke=\"#ccc\"/><text x=\"" << x + 20 << "\" y=\"" << y
      << "\">idle</text>\n";
}

} // namespace

std::string draw_svg(const Timeline& timeline, const std::string& title) {
  const double width = kMargin + kChart + 30;
  const double height = kTop + kRow * timeline.shape.stages + 60;
  const double scale = timeline.total > 0 ? kChart / timeline.total : 0;
  std::ostringstream svg;
  svg << std::fixed << std::setprecision(2);
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << ' ' << height << "\" width=\"" << width
      << "\" height=\"" << height << "\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n<title>"
      << escaped(title) << "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      << "<text x=\"" << kMargin << "\" y=\"26\" font-size=\"17\" font-weight=\"bold\">" << escaped(title)
      << "</text>\n<text x=\"" << kMargin << "\" y=\"46\">" << escaped(figures(timeline)) << "</text>\n";
  draw_axis(svg, timeline, scale);
  for (const TimelineSpan& span : timeline.spans) {
    draw_span(svg, timeline, span, scale);
  }
  draw_legend(svg, timeline);
  svg << "</svg>\n";
  return svg.str();
}

} // namespace trireme::pipeline
