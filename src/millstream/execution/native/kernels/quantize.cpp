// The quantisation of activations, and single rows of packed matrices as floats. Compiled once for each instruction set.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <utility>

#include "groups.h"
#include "parts.h"

namespace ms::MS_ISA {

namespace {

// One group as one term. Returns scale * (sum of q).
float quantize_group(F16x a, F16x b, const Term& term, size_t at) {
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
    store_i8(term.q + at * GROUP, a);
    store_i8(term.q + at * GROUP + 16, b);
    term.scale[at] = scale;
    term.sum[at] = static_cast<int32_t>(total);
    return scale * total;
}

// sixteen values less what the first term makes of them
F16x left_over(const float* values, const int8_t* q, float scale) { return fma(load_i8(q), set1(-scale), load(values)); }

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

void quantize(const float* values, const QuantizedRows& x, int token) {
    const size_t first = size_t(token) * x.num_groups;
    double squares = 0;  // of scales, whose squares no double rounds, and which may be too large or small for a float
    for (int g = 0; g < x.num_groups; ++g) {
        const float* at = values + size_t(g) * GROUP;
        x.scaled_sum[first + g] = quantize_group(load(at), load(at + 16), x.first, first + g);
        const double scale = x.first.scale[first + g];
        if (!std::isnan(scale)) squares += scale * scale;
    }
    const double limit = LARGE_GROUP * LARGE_GROUP * squares / x.num_groups;
    for (int begin = 0; begin < x.num_groups; begin += 64) {
        uint64_t flags = 0;
        for (int g = begin; g < std::min(begin + 64, x.num_groups); ++g) {
            const float scale = x.first.scale[first + g];
            if (!(double(scale) * scale > limit)) continue;
            flags |= uint64_t(1) << (g - begin);
            const float* at = values + size_t(g) * GROUP;
            const int8_t* q = x.first.q + (first + g) * GROUP;
            x.scaled_sum[first + g] += quantize_group(left_over(at, q, scale), left_over(at + 16, q + 16, scale), x.second, first + g);
        }
        x.flags[size_t(begin / 64) * x.num_tokens + token] = flags;
    }
}

}  // namespace ms::MS_ISA
