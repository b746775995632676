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
    bool is_near;  // into the first cache, not only into the second

    MS_INLINE void step() {
        if (next >= end) return;
        for (int i = 0; i < bytes_a_step; i += 64) {
            const char* line = reinterpret_cast<const char*>(next + i);
            is_near ? _mm_prefetch(line, _MM_HINT_T0) : _mm_prefetch(line, _MM_HINT_T1);
        }
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

// Integer sums of one part of a group.
template <class G, int TOKENS, int BLOCKS>
struct Dots {
    Dot<G::BITS, G::ZERO> of[TOKENS][BLOCKS];

    MS_INLINE void start(const Rows& rows, int g, int part) {
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; ++t) {
            int32_t sum = 0;
            if constexpr (G::ZERO && G::PARTS == 1) sum = rows.x.sum[rows.at(t, g)];
            if constexpr (G::ZERO && G::PARTS == 2) sum = sum_of_16(rows.q(t, g) + 16 * part);
#pragma GCC unroll 8
            for (int b = 0; b < BLOCKS; ++b) of[t][b].start(sum);
        }
    }

    template <int quad>
    MS_INLINE void add(const Rows& rows, int g, const G (&groups)[BLOCKS]) {
        Quad weights[BLOCKS];
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) weights[b] = groups[b].template weights<quad>();
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; ++t) {
            Inputs inputs = load_inputs(rows.q(t, g) + 4 * quad);
#pragma GCC unroll 8
            for (int b = 0; b < BLOCKS; ++b) of[t][b].add(weights[b], inputs);
        }
    }
};

template <class G, int TOKENS, int BLOCKS, int... quad>
MS_INLINE void add_part(F16x (&total)[TOKENS][BLOCKS], const Rows& rows, int g, const G (&groups)[BLOCKS], int part,
                        std::integer_sequence<int, quad...>) {
    Dots<G, TOKENS, BLOCKS> dots;
    dots.start(rows, g, part);
    (dots.template add<quad>(rows, g, groups), ...);
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; ++b) {
        F16x scale = groups[b].scale(part);
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; ++t) {
            total[t][b] = fma(dots.of[t][b].value(), scale * set1(rows.x.scale[rows.at(t, g)]), total[t][b]);
        }
    }
}

template <class G, int TOKENS, int BLOCKS>
MS_INLINE void add_group(F16x (&total)[TOKENS][BLOCKS], const Rows& rows, int g, const G (&groups)[BLOCKS]) {
    if constexpr (G::PARTS == 1) {  // quads j and j + 4 lie in the same bytes
        add_part(total, rows, g, groups, 0, std::integer_sequence<int, 0, 4, 1, 5, 2, 6, 3, 7>());
    } else {
        add_part(total, rows, g, groups, 0, std::integer_sequence<int, 0, 1, 2, 3>());
        add_part(total, rows, g, groups, 1, std::integer_sequence<int, 4, 5, 6, 7>());
    }
    if constexpr (G::HAS_MINIMUM) {
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) {
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

// Sizes of tiles, by the number of registers: a Dot and a sum for each token and block, weights, inputs and constants beside them. Few
// tokens wait for memory, which is read fastest from front to back, one block at a time; many profit from inputs that serve two.
#ifdef __AVX512F__
constexpr int MOST_TOKENS = 6;
constexpr int blocks_at_once(int num_tokens) { return num_tokens <= 4 ? 1 : 2; }
#else
constexpr int MOST_TOKENS = 4;
constexpr int blocks_at_once(int) { return 1; }
#endif

constexpr size_t FIRST_CACHE = 32 << 10;  // bytes: where the blocks at work and the next ones fit into it, the next are asked into it

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
    const int num_tiles = (num_tokens + MOST_TOKENS - 1) / MOST_TOKENS;
    const auto first_of = [=](int i) { return static_cast<int>(int64_t(num_tokens) * i / num_tiles); };
    const size_t block_bytes = w.bytes_per_block();
    // blocks outside, tokens inside: the weights of a tile stay in the first cache while the tokens pass
    for (int block = block_begin; block < block_end;) {
        const int blocks = std::min(blocks_at_once(num_tokens), block_end - block);
        const uint8_t* const data = w.data + size_t(block) * block_bytes;
        // of the next blocks, for each tile to ask for; one or two tokens are read so fast that the processor's own prefetcher does better
        const size_t share = num_tokens <= 2 ? 0 : blocks * block_bytes / num_tiles;
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
                .soon = {soon, soon + share, static_cast<int>((share / x.num_groups + 63) / 64 * 64), 2 * blocks * block_bytes <= FIRST_CACHE},
            };
            tile_for<format>(first_of(i + 1) - first_of(i), blocks, std::make_index_sequence<MOST_TOKENS>())(work);
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
