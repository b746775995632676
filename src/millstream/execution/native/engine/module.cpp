// millstream.execution.native._native: the module itself. What each function does is said where it is bound, types in _native.pyi.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "kernels/dispatch.h"

// What Python takes this module to be (availability.py). Raised with every change of what is bound or of its arguments.
constexpr int INTERFACE = 2;

NB_MODULE(_native, m) {
    m.attr("INTERFACE") = INTERFACE;
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
