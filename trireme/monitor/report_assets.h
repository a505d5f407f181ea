#pragma once

namespace trireme::monitor {

/// The style sheet and the script that render_report() puts into the page.
extern const char* const kReportStyle;
extern const char* const kReportScript;

} // namespace trireme::monitor
