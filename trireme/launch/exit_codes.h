#pragma once

namespace trireme::launch {

/// The user's input is wrong (InputError; most command lines say so too): to start again would not help.
inline constexpr int kWrongInput = 2;
/// A worker or replica has done its training and could not save the result (EX_IOERR): it is not started again, and the
/// job fails.
inline constexpr int kNotSaved = 74;

} // namespace trireme::launch
