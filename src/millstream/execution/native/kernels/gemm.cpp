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

// Memory that is needed soon, asked for bit by bit: the blocks that come next, while these are multiplied.
struct Prefetch {
    const uint8_t* next;
    const uint8_t* end;
    int bytes_a_step;

    MS_INLINE void step() {
        if (next >= end) return;
        for (int i = 0; i < bytes_a_step; i += 64) _mm_prefetch(reinterpret_cast<const char*>(next + i), _MM_HINT_T0);
        next += bytes_a_step;
    }
};

struct TileWork {
    const uint8_t* blocks;  // the first block
    size_t block_bytes;
    const QuantizedRows* x;
    int token;          // the first token
    const float* bias;  // of the first row, or null
    float* out;         // of the first token and row
    int stride;
    Prefetch soon;
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
    Prefetch soon = work.soon;
    for (int g = 0; g < rows.x.num_groups; ++g) {
        Group<format> groups[BLOCKS];
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) groups[b] = Group<format>::find(work.blocks + b * work.block_bytes, g);
        soon.step();
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

// Sizes of tiles, by the number of registers: Dots and a sum for each token and block, weights, inputs and constants beside them. Few
// tokens wait for memory, which is read fastest from front to back, one block at a time; many profit from inputs that serve two.
#ifdef __AVX512F__
template <Format format>
constexpr int MOST_TOKENS = Group<format>::PARTS == 2 ? 4 : 6;
constexpr int blocks_at_once(int num_tokens) { return num_tokens <= 4 ? 1 : 2; }
#else
template <Format format>
constexpr int MOST_TOKENS = Group<format>::PARTS == 2 ? 2 : 4;
constexpr int blocks_at_once(int) { return 1; }
#endif

using Tile = void (*)(const TileWork&);

template <Format format, std::size_t... t>
Tile tile_for(int tokens, int blocks, std::index_sequence<t...>) {
    static constexpr Tile singles[] = {tile<format, t + 1, 1>...};
    static constexpr Tile pairs[] = {tile<format, t + 1, 2>...};
    return (blocks == 2 ? pairs : singles)[tokens - 1];
}

template <Format format>
void multiply_as(const Matrix& w, int block_begin, int block_end, const QuantizedRows& x, int token_begin, int token_end, float* out, int stride) {
    // tiles of nearly the same size, as few as possible: 7 tokens are 4 and 3, not 6 and 1
    const int num_tokens = token_end - token_begin;
    const int num_tiles = (num_tokens + MOST_TOKENS<format> - 1) / MOST_TOKENS<format>;
    const auto first_of = [=](int i) { return static_cast<int>(int64_t(num_tokens) * i / num_tiles); };
    const size_t block_bytes = w.bytes_per_block();
    // blocks outside, tokens inside: the weights of a tile stay in the first cache while the tokens pass
    for (int block = block_begin; block < block_end;) {
        const int blocks = std::min(blocks_at_once(num_tokens), block_end - block);
        const uint8_t* const data = w.data + size_t(block) * block_bytes;
        const size_t share = blocks * block_bytes / num_tiles;  // of the next blocks, for each tile to ask for
        for (int i = 0; i < num_tiles; ++i) {
            const uint8_t* const soon = data + blocks * block_bytes + i * share;
            const TileWork work{
                .blocks = data,
                .block_bytes = block_bytes,
                .x = &x,
                .token = token_begin + first_of(i),
                .bias = w.bias ? w.bias + size_t(block) * BLOCK_ROWS : nullptr,
                .out = out + size_t(first_of(i)) * stride + size_t(block - block_begin) * BLOCK_ROWS,
                .stride = stride,
                .soon = {soon, soon + share, static_cast<int>((share / x.num_groups + 63) / 64 * 64)},
            };
            tile_for<format>(first_of(i + 1) - first_of(i), blocks, std::make_index_sequence<MOST_TOKENS<format>>())(work);
        }
        block += blocks;
    }
}

}  // namespace

void multiply(const Matrix& w, int block_begin, int block_end, const QuantizedRows& x, int token_begin, int token_end, float* out, int stride) {
    if (token_begin == token_end) return;
    const auto as = [&](auto format) { multiply_as<format()>(w, block_begin, block_end, x, token_begin, token_end, out, stride); };
    with_format(w.format, as);
}

}  // namespace ms::MS_ISA
