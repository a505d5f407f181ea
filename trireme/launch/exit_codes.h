#pragma once

namespace trireme::launch {

/// The user's input is wrong (InputError; most command lines use it too): a restart would not help.
inline constexpr int kWrongInput = 2;
/// A worker or replica finished its training and could not save the result (EX_IOERR). It is not restarted, and the job
/// fails.
inline constexpr int kNotSaved = 74;

} // namespace trireme::launch
