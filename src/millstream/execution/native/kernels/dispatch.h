// find_kernels: the kernels of an instruction set by name, or the best of this machine's.
#pragma once

#include "kernels.h"

namespace ms {

// `name` is "avx512", "avx2", or "" for the best; null where the machine lacks it.
const Kernels* find_kernels(const char* name);

}  // namespace ms
