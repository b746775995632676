// What each file of bindings adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace ms {

void bind_matrix(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_model(nanobind::module_& m);
void bind_thread_pool(nanobind::module_& m);

}  // namespace ms
