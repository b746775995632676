// Products of packed matrices (layout.h) with quantised activations. Compiled once for each instruction set.
//
// A product is cut into tiles of a few tokens by a few blocks of 16 rows, whose sums stay in registers over all groups. Within a group
// products are integers and exact; then, group by group, out += float(integer sum) * (d * dx), and for formats with a minimum
// out += m * scaled_sum; the bias comes last. So an output element is the same in every tile, and on every instruction set.
#include <algorithm>
#include <utility>

#include "groups.h"
#include "parts.h"

namespace ms::MS_ISA {

namespace {

struct TileWork {
    const uint8_t* blocks;  // the first block
    size_t block_bytes;
    const QuantizedRows* x;
    int token;          // the first token
    const float* bias;  // of the first row, or null
    float* out;         // of the first token and row
    int stride;
};

// The activations of a tile's tokens.
struct Rows {
    const QuantizedRows& x;
    int token;

    MS_INLINE size_t at(int t, int g) const { return size_t(token + t) * x.num_groups + g; }
    MS_INLINE const int8_t* q(int t, int g) const { return x.q + at(t, g) * GROUP; }
};

template <class G, int TOKENS, int BLOCKS>
using Dots = Dot<G::BITS, G::ZERO>[TOKENS][BLOCKS][G::PARTS];

template <class G, int TOKENS, int BLOCKS>
MS_INLINE void start(Dots<G, TOKENS, BLOCKS>& dots, const Rows& rows, int g) {
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; ++t) {
        int32_t sum = G::ZERO ? rows.x.sum[rows.at(t, g)] : 0;
        int32_t first = G::PARTS == 2 ? sum_of_16(rows.q(t, g)) : sum;
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) {
            dots[t][b][0].start(first);
            if constexpr (G::PARTS == 2) dots[t][b][1].start(sum - first);
        }
    }
}

// the products of quads j and j + 4
template <int j, class G, int TOKENS, int BLOCKS>
MS_INLINE void add_quads(Dots<G, TOKENS, BLOCKS>& dots, const Rows& rows, int g, const G (&groups)[BLOCKS]) {
    TwoQuads weights[BLOCKS];
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; ++b) weights[b] = groups[b].template quads<j>();
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; ++t) {
        Inputs inputs = load_inputs(rows.q(t, g) + 4 * j);
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) dots[t][b][0].add(weights[b].low, inputs);
    }
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; ++t) {
        Inputs inputs = load_inputs(rows.q(t, g) + 4 * (j + 4));
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) dots[t][b][G::PARTS - 1].add(weights[b].high, inputs);
    }
}

template <class G, int TOKENS, int BLOCKS>
MS_INLINE void add_group(F16x (&total)[TOKENS][BLOCKS], const Rows& rows, int g, const G (&groups)[BLOCKS]) {
    Dots<G, TOKENS, BLOCKS> dots;
    start<G, TOKENS, BLOCKS>(dots, rows, g);
    add_quads<0, G, TOKENS, BLOCKS>(dots, rows, g, groups);
    add_quads<1, G, TOKENS, BLOCKS>(dots, rows, g, groups);
    add_quads<2, G, TOKENS, BLOCKS>(dots, rows, g, groups);
    add_quads<3, G, TOKENS, BLOCKS>(dots, rows, g, groups);
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; ++b) {
#pragma GCC unroll 2
        for (int part = 0; part < G::PARTS; ++part) {
            F16x scale = groups[b].scale(part);
#pragma GCC unroll 8
            for (int t = 0; t < TOKENS; ++t) {
                total[t][b] = fma(dots[t][b][part].value(), scale * set1(rows.x.scale[rows.at(t, g)]), total[t][b]);
            }
        }
        if constexpr (G::HAS_MINIMUM) {
            F16x minimum = groups[b].minimum();
#pragma GCC unroll 8
            for (int t = 0; t < TOKENS; ++t) total[t][b] = fma(minimum, set1(rows.x.scaled_sum[rows.at(t, g)]), total[t][b]);
        }
    }
}

template <Format format, int TOKENS, int BLOCKS>
void tile(const TileWork& work) {
    const Rows rows{*work.x, work.token};
    F16x total[TOKENS][BLOCKS];
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; ++t) {
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) total[t][b] = zero();
    }
    for (int g = 0; g < rows.x.num_groups; ++g) {
        Group<format> groups[BLOCKS];
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) groups[b] = Group<format>::find(work.blocks + b * work.block_bytes, g);
        add_group(total, rows, g, groups);
    }
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; ++t) {
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) {
            F16x out = work.bias ? total[t][b] + load(work.bias + b * BLOCK_ROWS) : total[t][b];
            store(work.out + size_t(t) * work.stride + b * BLOCK_ROWS, out);
        }
    }
}

// Sizes of tiles, by the number of registers: a Dot and a sum for each token and block, weights, inputs and constants beside them.
#ifdef __AVX512F__
template <Format format>
constexpr int MOST_TOKENS = Group<format>::PARTS == 2 ? 4 : 6;
constexpr int blocks_for(int tokens) { return tokens <= 2 ? 4 : 2; }
#else
template <Format format>
constexpr int MOST_TOKENS = Group<format>::PARTS == 2 ? 2 : 4;
constexpr int blocks_for(int) { return 1; }
#endif

using Tile = void (*)(const TileWork&);

struct TileShape {
    int blocks;
    Tile full;    // `blocks` blocks
    Tile single;  // one block
};

template <Format format, std::size_t... t>
constexpr TileShape shape_for(int tokens, std::index_sequence<t...>) {
    constexpr TileShape shapes[] = {{blocks_for(t + 1), tile<format, t + 1, blocks_for(t + 1)>, tile<format, t + 1, 1>}...};
    return shapes[tokens - 1];
}

template <Format format>
void multiply_as(const Matrix& w, int block_begin, int block_end, const QuantizedRows& x, int token_begin, int token_end, float* out, int stride) {
    // tiles of nearly the same size, as few as possible: 7 tokens are 4 and 3, not 6 and 1
    const int num_tokens = token_end - token_begin;
    const int num_tiles = (num_tokens + MOST_TOKENS<format> - 1) / MOST_TOKENS<format>;
    const auto shape_of = [](int tokens) { return shape_for<format>(tokens, std::make_index_sequence<MOST_TOKENS<format>>()); };
    const int blocks_at_once = shape_of((num_tokens + num_tiles - 1) / num_tiles).blocks;

    TileWork work{.blocks = nullptr, .block_bytes = w.bytes_per_block(), .x = &x, .token = 0, .bias = nullptr, .out = nullptr, .stride = stride};
    // blocks outside, tokens inside: the weights of a tile stay in the first cache while the tokens pass
    for (int block = block_begin; block < block_end;) {
        const bool full = block_end - block >= blocks_at_once;
        work.blocks = w.data + size_t(block) * work.block_bytes;
        work.bias = w.bias ? w.bias + size_t(block) * BLOCK_ROWS : nullptr;
        for (int i = 0; i < num_tiles; ++i) {
            const int first = num_tokens * i / num_tiles;  // at most a few thousand tokens: no overflow
            const int count = num_tokens * (i + 1) / num_tiles - first;
            work.token = token_begin + first;
            work.out = out + size_t(first) * stride + size_t(block - block_begin) * BLOCK_ROWS;
            const TileShape shape = shape_of(count);
            (full ? shape.full : shape.single)(work);
        }
        block += full ? blocks_at_once : 1;
    }
}

}  // namespace

void multiply(const Matrix& w, int block_begin, int block_end, const QuantizedRows& x, int token_begin, int token_end, float* out, int stride) {
    if (token_begin == token_end) return;
    const auto as = [&](auto format) { multiply_as<format()>(w, block_begin, block_end, x, token_begin, token_end, out, stride); };
    with_format(w.format, as);
}

}  // namespace ms::MS_ISA
