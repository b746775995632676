// What each file of bindings adds to the module.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "kernels/layout.h"

namespace ms {

// The packed format of a name such as "q4_min".
Format format_named(const std::string& name);

void bind_matrix(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_model(nanobind::module_& m);
void bind_thread_pool(nanobind::module_& m);
void bind_ceilings(nanobind::module_& m);

}  // namespace ms
