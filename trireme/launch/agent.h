#pragma once

namespace trireme::launch {

/// `trireme agent`: runs ranks on this machine for a launcher on another one; their connection is its standard input
/// and output (messages.h). It kills its ranks and ends on end of input, on SIGTERM, SIGINT or SIGHUP, or when its
/// lease (lease.h) expires without an answer.
///
/// Orders: job (first; host, folder, run_id, secret, env, lease_s), listen (address,
/// ranks), start (share), signal, stop (signal), kill, hold (on), beat (asked).
/// Events: ready (protocol, pid, asked), listening (port), output (rank, stream,
/// text), ended (rank, status, pid, peak_rss_bytes, out_of_memory), over, say, refused
/// (input, text), beat (asked) twice per second, gone (the last one: no rank runs).
/// "asked" is a host_time() of the agent; the order "beat" returns it and so grants a
/// lease from then on. Returns: the exit code, 0 after an end that the launcher
/// requested.
int run_agent();

} // namespace trireme::launch
