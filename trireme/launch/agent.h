#pragma once

namespace trireme::launch {

/// `trireme agent`: runs ranks on this machine for a launcher on another one, which talks to it over standard input and
/// output (see messages.h). It kills its ranks and ends when its input ends, on SIGTERM, SIGINT or SIGHUP, or when its
/// lease runs out because no answer of the launcher came (lease.h).
///
/// Orders: job (first; host, folder, run_id, secret, env, lease_s), listen (address, ranks), start (share), signal,
/// stop
/// (signal), kill, hold (on), beat (asked). Events: ready (protocol, pid, asked), listening (port), output (rank,
/// stream, text), ended (rank, status, pid,
/// peak_rss_bytes, out_of_memory), over, say, refused (input, text), beat (asked) twice a second, gone: the last one,
/// no rank runs.
/// "asked" is a host_time() of the agent; the order "beat" brings it back and so grants a lease from then on.
/// Returns: the exit code, 0 after an end that the launcher asked for.
int run_agent();

} // namespace trireme::launch
