// Block layouts of GGUF: the ggml project, as millstream.checkpoint.quant reads them.
#include "pack.h"

#include <emmintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace ms {

namespace {

// A group of one row: 32 weights as unsigned numbers, as layout.h counts them. Numbers that the format lacks stay 0.
struct RowGroup {
    uint8_t q[GROUP];
    uint16_t d, m;     // fp16; of a K-quant, the scales of its super-block
    uint8_t s[2];      // of a K-quant: q4_k's s and t, q6_k's two scales
};

// ---- reading ----

uint16_t half_at(const uint8_t* p) {
    uint16_t half;
    std::memcpy(&half, p, sizeof half);
    return half;
}

bool is_finite(uint16_t half) { return (half & 0x7C00) != 0x7C00; }

// 16 bytes: weights 0-15 in the low halves, 16-31 in the high ones
void read_nibbles(const uint8_t* bytes, uint8_t* q) {
    for (int i = 0; i < 16; ++i) {
        q[i] = bytes[i] & 15;
        q[i + 16] = bytes[i] >> 4;
    }
}

void read_q4_k(const uint8_t* super, int g, RowGroup& out) {
    out.d = half_at(super);
    out.m = half_at(super + 2);
    // scales and minima have 6 bits: those of groups 0-3 stand in the low bits of bytes 0-3 and 4-7; those of groups 4-7 have their low
    // 4 bits in bytes 8-11 and their high 2 in the top of bytes 0-3 and 4-7
    const uint8_t* packed = super + 4;
    const int i = g % 4;
    out.s[0] = g < 4 ? packed[i] & 63 : (packed[8 + i] & 15) | (packed[i] >> 6) << 4;
    out.s[1] = g < 4 ? packed[4 + i] & 63 : packed[8 + i] >> 4 | (packed[4 + i] >> 6) << 4;
    // 32 bytes hold a group in their low halves and the next one in their high ones
    const uint8_t* bytes = super + 16 + 32 * (g / 2);
    for (int i = 0; i < GROUP; ++i) out.q[i] = g % 2 ? bytes[i] >> 4 : bytes[i] & 15;
}

void read_q6_k(const uint8_t* super, int g, RowGroup& out) {
    out.d = half_at(super + 208);
    out.s[0] = super[192 + 2 * g];
    out.s[1] = super[192 + 2 * g + 1];
    // each half of the super-block has 64 bytes for 4 groups: the low halves are groups 0 and 1, the high ones 2 and 3; and 32 bytes of
    // high bits, 2 for each group
    const int i = g % 4;
    const uint8_t* low = super + 64 * (g / 4) + 32 * (i % 2);
    const uint8_t* high = super + 128 + 32 * (g / 4);
    for (int k = 0; k < GROUP; ++k) out.q[k] = (i < 2 ? low[k] & 15 : low[k] >> 4) | (high[k] >> 2 * i & 3) << 4;
}

void read_group(Stored type, const uint8_t* row, int g, RowGroup& out) {
    switch (type) {
        case Stored::q4_0:
            out.d = half_at(row + 18 * g);
            return read_nibbles(row + 18 * g + 2, out.q);
        case Stored::q4_1:
            out.d = half_at(row + 20 * g);
            out.m = half_at(row + 20 * g + 2);
            return read_nibbles(row + 20 * g + 4, out.q);
        case Stored::q8_0:
            out.d = half_at(row + 34 * g);
            for (int i = 0; i < GROUP; ++i) out.q[i] = row[34 * g + 2 + i] ^ 0x80;  // from signed to w + 128
            return;
        case Stored::q4_k: return read_q4_k(row + 144 * (g / SUPER_GROUPS), g % SUPER_GROUPS, out);
        case Stored::q6_k: return read_q6_k(row + 210 * (g / SUPER_GROUPS), g % SUPER_GROUPS, out);
    }
}

// ---- writing ----

uint32_t four_at(const uint8_t* p) {
    uint32_t four;
    std::memcpy(&four, p, sizeof four);
    return four;
}

void write_four(uint8_t* p, uint32_t four) { std::memcpy(p, &four, sizeof four); }

void write_half(uint8_t* halves, int row, uint16_t half) { std::memcpy(halves + 2 * row, &half, sizeof half); }

void write_nibbles(const uint8_t* q, int row, uint8_t* out) {
    for (int j = 0; j < 4; ++j) write_four(out + 64 * j + 4 * row, (four_at(q + 4 * j) & 0x0F0F0F0F) | (four_at(q + 16 + 4 * j) & 0x0F0F0F0F) << 4);
}

void write_q6_k(const RowGroup& group, int row, uint8_t* out) {
    write_nibbles(group.q, row, out);
    for (int half = 0; half < 2; ++half) {
        uint32_t bits = 0;
        for (int j = 0; j < 4; ++j) bits |= (four_at(group.q + 16 * half + 4 * j) >> 4 & 0x03030303) << 2 * j;
        write_four(out + 256 + 64 * half + 4 * row, bits);
    }
    out[384 + row] = group.s[0];
    out[400 + row] = group.s[1];
}

// row `row` of group `g` of the block at `block`
void write_group(Format format, const RowGroup& group, int row, int g, uint8_t* block) {
    switch (format) {
        case Format::q4:
            write_nibbles(group.q, row, block + size_t(g) * 288);
            return write_half(block + size_t(g) * 288 + 256, row, group.d);
        case Format::q4_min:
            write_nibbles(group.q, row, block + size_t(g) * 320);
            write_half(block + size_t(g) * 320 + 256, row, group.d);
            return write_half(block + size_t(g) * 320 + 288, row, group.m);
        case Format::q8:
            for (int j = 0; j < 8; ++j) write_four(block + size_t(g) * 544 + 64 * j + 4 * row, four_at(group.q + 4 * j));
            return write_half(block + size_t(g) * 544 + 512, row, group.d);
        case Format::q4_k: {
            uint8_t* super = block + size_t(g / SUPER_GROUPS) * 2368;
            uint8_t* at = super + 64 + g % SUPER_GROUPS * 288;
            write_half(super, row, group.d);
            write_half(super + 32, row, group.m);
            write_nibbles(group.q, row, at);
            at[256 + row] = group.s[0];
            at[272 + row] = group.s[1];
            return;
        }
        case Format::q6_k: {
            uint8_t* super = block + size_t(g / SUPER_GROUPS) * 3360;
            write_half(super, row, group.d);
            return write_q6_k(group, row, super + 32 + g % SUPER_GROUPS * 416);
        }
    }
}

// ---- floats ----

// the least fp16 number not below x, as its bits; x from 0 to 65504
uint16_t half_not_below(float x) {
    if (x < 6.103515625e-05f) return static_cast<uint16_t>(std::ceil(x * 16777216.0f));  // subnormal: multiples of 2^-24
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return static_cast<uint16_t>((bits >> 13) + ((bits & 0x1FFF) != 0) - ((127 - 15) << 10));
}

float float_of_half(uint16_t half) {
    const uint32_t exponent_and_fraction = half;
    if (half < 0x400) return static_cast<float>(half) / 16777216.0f;
    return std::bit_cast<float>((exponent_and_fraction << 13) + ((127u - 15) << 23));
}

// `count` weights as 32 numbers q with w = d (q - 128); the missing ones are zero
bool round_group(const float* values, int count, RowGroup& out) {
    float most = 0.0f;
    bool is_finite = true;
    for (int i = 0; i < count; ++i) {
        is_finite &= std::isfinite(values[i]);
        most = std::max(most, std::fabs(values[i]));
    }
    if (!is_finite || most > 127.0f * 65504.0f) return false;
    out.d = half_not_below(most / 127.0f);
    const float d = float_of_half(out.d);
    for (int i = 0; i < GROUP; ++i) {
        const float weight = i < count && d > 0.0f ? values[i] / d : 0.0f;
        out.q[i] = static_cast<uint8_t>(_mm_cvtss_si32(_mm_set_ss(weight)) + 128);
    }
    return true;
}

}  // namespace

Format packed_format(Stored type) {
    switch (type) {
        case Stored::q4_0: return Format::q4;
        case Stored::q4_1: return Format::q4_min;
        case Stored::q8_0: return Format::q8;
        case Stored::q4_k: return Format::q4_k;
        case Stored::q6_k: return Format::q6_k;
    }
    __builtin_unreachable();
}

int stored_block_inputs(Stored type) { return type == Stored::q4_k || type == Stored::q6_k ? GROUP * SUPER_GROUPS : GROUP; }

size_t stored_row_bytes(Stored type, int inputs) {
    const size_t blocks = inputs / stored_block_inputs(type);
    switch (type) {
        case Stored::q4_0: return blocks * 18;
        case Stored::q4_1: return blocks * 20;
        case Stored::q8_0: return blocks * 34;
        case Stored::q4_k: return blocks * 144;
        case Stored::q6_k: return blocks * 210;
    }
    __builtin_unreachable();
}

int padded_rows(int rows) { return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS; }

int padded_inputs(Format format, int inputs) {
    const int unit = format == Format::q4_k || format == Format::q6_k ? GROUP * SUPER_GROUPS : GROUP;
    return (inputs + unit - 1) / unit * unit;
}

size_t packed_bytes(Format format, int rows, int inputs) {
    return block_bytes(format, padded_inputs(format, inputs) / GROUP) * (padded_rows(rows) / BLOCK_ROWS);
}

bool pack_stored(Stored type, const uint8_t* stored, int rows, int inputs, const int32_t* order, int block_begin, int block_end, uint8_t* out) {
    const Format format = packed_format(type);
    const size_t row_bytes = stored_row_bytes(type, inputs);
    const int num_groups = inputs / GROUP;
    const size_t bytes = block_bytes(format, num_groups);
    for (int block = block_begin; block < block_end; ++block) {
        uint8_t* const at = out + block * bytes;
        const int count = std::min(BLOCK_ROWS, rows - block * BLOCK_ROWS);
        if (count < BLOCK_ROWS) std::memset(at, 0, bytes);  // a scale of 0 makes a weight 0
        for (int row = 0; row < count; ++row) {
            const int i = block * BLOCK_ROWS + row;
            const uint8_t* from = stored + (order ? order[i] : i) * row_bytes;
            for (int g = 0; g < num_groups; ++g) {
                RowGroup group{};
                read_group(type, from, g, group);
                if (!is_finite(group.d) || !is_finite(group.m)) return false;
                write_group(format, group, row, g, at);
            }
        }
    }
    return true;
}

bool pack_floats(const float* values, int rows, int inputs, int block_begin, int block_end, uint8_t* out) {
    const int num_groups = padded_inputs(Format::q8, inputs) / GROUP;
    const size_t bytes = block_bytes(Format::q8, num_groups);
    for (int block = block_begin; block < block_end; ++block) {
        uint8_t* const at = out + block * bytes;
        const int count = std::min(BLOCK_ROWS, rows - block * BLOCK_ROWS);
        if (count < BLOCK_ROWS) std::memset(at, 0, bytes);
        for (int row = 0; row < count; ++row) {
            const float* from = values + size_t(block * BLOCK_ROWS + row) * inputs;
            for (int g = 0; g < num_groups; ++g) {
                RowGroup group{};
                if (!round_group(from + g * GROUP, std::min(GROUP, inputs - g * GROUP), group)) return false;
                write_group(Format::q8, group, row, g, at);
            }
        }
    }
    return true;
}

}  // namespace ms
