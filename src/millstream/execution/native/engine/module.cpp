// millstream.execution.native._native: the module itself. What each function does is said where it is bound, types in _native.pyi.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "kernels/dispatch.h"

NB_MODULE(_native, m) {
    m.def("instruction_set", []() -> nanobind::object {
        const ms::Kernels* best = ms::find_kernels("");
        return best ? nanobind::cast(best->name) : nanobind::none();
    });
    ms::bind_matrix(m);
    ms::bind_attention(m);
    ms::bind_sampling(m);
    ms::bind_model(m);
    ms::bind_thread_pool(m);
    ms::bind_ceilings(m);
}
