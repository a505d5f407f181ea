#pragma once

namespace trireme::launch {

/// `trireme agent`: runs ranks on this machine for a launcher on another one, which talks to it over standard input and output
/// (see messages.h). It kills its ranks and ends when its input ends, on SIGTERM, SIGINT or SIGHUP, or when the
/// launcher has been silent for a minute (ten heartbeat time-outs if that is longer).
///
/// Orders: job (first; host, folder, run_id, secret, env, patience_s), listen (address, ranks), start (share), signal, stop
/// (signal), kill, hold (on), beat. Events: ready, listening (port), output (rank, stream, text), ended (rank, status, pid,
/// peak_rss_bytes, out_of_memory), over, say, refused (input, text), beat twice a second.
/// Returns: the exit code, 0 after an end that the launcher asked for.
int run_agent();

} // namespace trireme::launch
