// The table of this instruction set's kernels. Compiled once for each.
#include "parts.h"

namespace ms {

#define MS_JOIN_(a, b) a##b
#define MS_JOIN(a, b) MS_JOIN_(a, b)
#define MS_TEXT_(a) #a
#define MS_TEXT(a) MS_TEXT_(a)

const Kernels* MS_JOIN(kernels_, MS_ISA)() {
    static const Kernels table = {
        MS_TEXT(MS_ISA),
        MS_ISA::multiply, MS_ISA::quantize, MS_ISA::unpack_row,
        MS_ISA::add_norm, MS_ISA::gate, MS_ISA::norm_rotate, MS_ISA::scale, MS_ISA::softcap, MS_ISA::all_finite,
        MS_ISA::store_kv, MS_ISA::attend, MS_ISA::merge,
        MS_ISA::argmax, MS_ISA::draw,
        MS_ISA::log_sum_exp, MS_ISA::most_likely,
        MS_ISA::int8_products, MS_ISA::float_products, MS_ISA::read_floats,
    };
    return &table;
}

}  // namespace ms
