#pragma once
// ProcessGroupGloo.hpp includes this and uses nothing of it.
