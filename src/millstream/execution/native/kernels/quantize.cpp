// The quantisation of activations, and single rows of packed matrices as floats. Compiled once for each instruction set.
#include <cfloat>
#include <cmath>
#include <limits>
#include <utility>

#include "groups.h"
#include "parts.h"

namespace ms::MS_ISA {

namespace {

void quantize_group(const float* values, const QuantizedRows& x, size_t at) {
    F16x a = load(values), b = load(values + 16);
    const float most = largest(max(abs(a), abs(b)));
    // below it a scale would be subnormal, and its inverse infinite
    const bool is_zero = most < 127.0f * FLT_MIN;
    const F16x inverse = set1(is_zero ? 0.0f : 127.0f / most);
    a = round(a * inverse);
    b = round(b * inverse);
    float total = sum(a + b);  // exact; NaN where any value is NaN or infinite: then `most`, whatever it is, makes a NaN of that value
    float scale = is_zero ? 0.0f : most / 127.0f;
    if (std::isnan(total)) {
        a = b = zero();
        total = 0.0f;
        scale = std::numeric_limits<float>::quiet_NaN();
    }
    store_i8(x.q + at * GROUP, a);
    store_i8(x.q + at * GROUP + 16, b);
    x.scale[at] = scale;
    x.sum[at] = static_cast<int32_t>(total);
    x.scaled_sum[at] = scale * total;
}

// the weights of all 16 rows in a group, unsigned as they are stored: the 4 bytes of row r in quad j stand at 64 * j + 4 * r
template <class G, int... quad>
void unpack_group(const G& group, uint8_t (&bytes)[GROUP * BLOCK_ROWS], std::integer_sequence<int, quad...>) {
    (store_quad(bytes + 64 * quad, group.template weights<quad>()), ...);
}

// Products and sums are rounded one by one, as millstream.checkpoint.quant does it.
template <Format format>
void unpack_row_of(const uint8_t* block, int row, int num_groups, float* out) {
    using G = Group<format>;
    for (int g = 0; g < num_groups; ++g, out += GROUP) {
        const G group = G::find(block, g);
        uint8_t bytes[GROUP * BLOCK_ROWS];
        unpack_group(group, bytes, std::make_integer_sequence<int, 8>());
        float scales[G::PARTS][LANES], minimums[LANES] = {};
        for (int part = 0; part < G::PARTS; ++part) store(scales[part], group.scale(part));
        if constexpr (G::HAS_MINIMUM) store(minimums, group.minimum());
        for (int i = 0; i < GROUP; ++i) {
            float q = bytes[64 * (i / 4) + 4 * row + i % 4] - G::ZERO;
            out[i] = q * scales[i * G::PARTS / GROUP][row];
            if constexpr (G::HAS_MINIMUM) out[i] += minimums[row];
        }
    }
}

}  // namespace

void unpack_row(const Matrix& w, int row, float* out) {
    const uint8_t* block = w.data + size_t(row / BLOCK_ROWS) * w.bytes_per_block();
    with_format(w.format, [&](auto format) { unpack_row_of<format()>(block, row % BLOCK_ROWS, w.num_groups, out); });
}

void quantize(const float* values, int num_groups, const QuantizedRows& x, int token, int group_begin) {
    const size_t first = size_t(token) * x.num_groups + group_begin;
    for (int g = 0; g < num_groups; ++g) quantize_group(values + size_t(g) * GROUP, x, first + g);
}

}  // namespace ms::MS_ISA
