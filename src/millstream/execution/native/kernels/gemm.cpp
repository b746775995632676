// Products of packed matrices (layout.h) with quantised activations. Compiled once for each instruction set.
//
// A product is cut into tiles of a few tokens by a few blocks of 16 rows, whose sums stay in registers over all groups. Within a group
// products are integers and exact; then, group by group, out += float(integer sum) * (d * dx), and for formats with a minimum
// out += m * scaled_sum. The second terms follow, group by group, a tile of those tokens that have one; the bias comes last. So an output
// element is the same in every tile, and on every instruction set.
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
    int token;   // the first token
    float* out;  // of the first token and row
    int stride;
    Prefetch soon;
};

struct Consecutive {
    int first;
    MS_INLINE int operator()(int t) const { return first + t; }
};

struct Chosen {
    const int* tokens;
    MS_INLINE int operator()(int t) const { return tokens[t]; }
};

// A term of the activations of a tile's tokens.
template <class Tokens>
struct Rows {
    const Term& term;
    int num_groups;
    Tokens token;

    MS_INLINE size_t at(int t, int g) const { return size_t(token(t)) * num_groups + g; }
    MS_INLINE const int8_t* q(int t, int g) const { return term.q + at(t, g) * GROUP; }
    MS_INLINE int32_t sum(int t, int g) const { return term.sum[at(t, g)]; }
    MS_INLINE F16x scale(int t, int g) const { return set1(term.scale[at(t, g)]); }
};

// Integer sums of one part of a group.
template <class G, int TOKENS, int BLOCKS>
struct Dots {
    Dot<G::BITS, G::ZERO> of[TOKENS][BLOCKS];

    template <class R>
    MS_INLINE void start(const R& rows, int g, int part) {
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; ++t) {
            int32_t sum = 0;
            if constexpr (G::ZERO && G::PARTS == 1) sum = rows.sum(t, g);
            if constexpr (G::ZERO && G::PARTS == 2) sum = sum_of_16(rows.q(t, g) + 16 * part);
#pragma GCC unroll 8
            for (int b = 0; b < BLOCKS; ++b) of[t][b].start(sum);
        }
    }

    template <int quad, class R>
    MS_INLINE void add(const R& rows, int g, const G (&groups)[BLOCKS]) {
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

template <class R, class G, int TOKENS, int BLOCKS, int... quad>
MS_INLINE void add_part(F16x (&total)[TOKENS][BLOCKS], const R& rows, int g, const G (&groups)[BLOCKS], int part,
                        std::integer_sequence<int, quad...>) {
    Dots<G, TOKENS, BLOCKS> dots;
    dots.start(rows, g, part);
    (dots.template add<quad>(rows, g, groups), ...);
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; ++b) {
        F16x scale = groups[b].scale(part);
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; ++t) {
            total[t][b] = fma(dots.of[t][b].value(), scale * rows.scale(t, g), total[t][b]);
        }
    }
}

template <class R, class G, int TOKENS, int BLOCKS>
MS_INLINE void add_group(F16x (&total)[TOKENS][BLOCKS], const R& rows, int g, const G (&groups)[BLOCKS]) {
    if constexpr (G::PARTS == 1) {  // quads j and j + 4 lie in the same bytes
        add_part(total, rows, g, groups, 0, std::integer_sequence<int, 0, 4, 1, 5, 2, 6, 3, 7>());
    } else {
        add_part(total, rows, g, groups, 0, std::integer_sequence<int, 0, 1, 2, 3>());
        add_part(total, rows, g, groups, 1, std::integer_sequence<int, 4, 5, 6, 7>());
    }
}

template <class G, int TOKENS, int BLOCKS>
MS_INLINE void add_minimum(F16x (&total)[TOKENS][BLOCKS], const float* scaled_sum, int num_groups, const G (&groups)[BLOCKS]) {
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; ++b) {
        F16x minimum = groups[b].minimum();
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; ++t) total[t][b] = fma(minimum, set1(scaled_sum[size_t(t) * num_groups]), total[t][b]);
    }
}

template <Format format, int BLOCKS>
MS_INLINE void find_groups(Group<format> (&groups)[BLOCKS], const uint8_t* blocks, size_t block_bytes, int g) {
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; ++b) groups[b] = Group<format>::find(blocks + b * block_bytes, g);
}

template <Format format, int TOKENS, int BLOCKS>
void tile(const TileWork& work) {
    const QuantizedRows& x = *work.x;
    const Rows<Consecutive> rows{x.first, x.num_groups, {work.token}};
    F16x total[TOKENS][BLOCKS];
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; ++t) {
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) total[t][b] = zero();
    }
    Prefetch soon = work.soon;
    for (int g = 0; g < x.num_groups; ++g) {
        Group<format> groups[BLOCKS];
        find_groups(groups, work.blocks, work.block_bytes, g);
        soon.step();
        add_group(total, rows, g, groups);
        if constexpr (Group<format>::HAS_MINIMUM) add_minimum(total, x.scaled_sum + rows.at(0, g), x.num_groups, groups);
    }
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; ++t) {
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) store(work.out + size_t(t) * work.stride + b * BLOCK_ROWS, total[t][b]);
    }
}

// out += the second terms of one group, of tokens that have one. `out` is that of token `work.token`.
template <Format format, int TOKENS, int BLOCKS>
void add_second(const TileWork& work, int g, const int* tokens) {
    const Rows<Chosen> rows{work.x->second, work.x->num_groups, {tokens}};
    Group<format> groups[BLOCKS];
    find_groups(groups, work.blocks, work.block_bytes, g);
    float* out[TOKENS];
    F16x total[TOKENS][BLOCKS];
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; ++t) {
        out[t] = work.out + size_t(tokens[t] - work.token) * work.stride;
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) total[t][b] = load(out[t] + b * BLOCK_ROWS);
    }
    add_group(total, rows, g, groups);
#pragma GCC unroll 8
    for (int t = 0; t < TOKENS; ++t) {
#pragma GCC unroll 8
        for (int b = 0; b < BLOCKS; ++b) store(out[t] + b * BLOCK_ROWS, total[t][b]);
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
using AddSecond = void (*)(const TileWork&, int g, const int* tokens);

template <Format format, std::size_t... t>
Tile tile_for(int tokens, int blocks, std::index_sequence<t...>) {
    static constexpr Tile singles[] = {tile<format, t + 1, 1>...};
    static constexpr Tile pairs[] = {tile<format, t + 1, 2>...};
    return (blocks == 2 ? pairs : singles)[tokens - 1];
}

template <Format format, std::size_t... t>
AddSecond add_second_for(int tokens, int blocks, std::index_sequence<t...>) {
    static constexpr AddSecond singles[] = {add_second<format, t + 1, 1>...};
    static constexpr AddSecond pairs[] = {add_second<format, t + 1, 2>...};
    return (blocks == 2 ? pairs : singles)[tokens - 1];
}

// Tiles of nearly the same size, as few as possible: 7 tokens are 4 and 3, not 6 and 1.
struct Tiles {
    int num_tokens;
    int count = (num_tokens + MOST_TOKENS - 1) / MOST_TOKENS;

    int first(int i) const { return static_cast<int>(int64_t(num_tokens) * i / count); }
    int size(int i) const { return first(i + 1) - first(i); }
};

constexpr int TOKENS_AT_ONCE = 60;  // whose outputs are still in the first cache when the second terms come; full tiles, 64 at most

// out = the first terms. Of the next blocks each tile asks for `share` bytes.
template <Format format>
void set_firsts(TileWork work, int blocks, const Tiles& tiles, size_t share) {
    const TileWork all = work;
    for (int i = 0; i < tiles.count; ++i) {
        work.token = all.token + tiles.first(i);
        work.out = all.out + size_t(tiles.first(i)) * all.stride;
        work.soon.next = all.soon.next + i * share;
        work.soon.end = work.soon.next + share;
        tile_for<format>(tiles.size(i), blocks, std::make_index_sequence<MOST_TOKENS>())(work);
    }
}

// of 64 words at most, those with bit `bit`: a bit each
MS_INLINE uint64_t all_words_with(int bit, int n, const uint64_t* words) {
    uint64_t found = 0;
    for (int i = 0; i < n; i += 8) found |= uint64_t(words_with(bit, std::min(8, n - i), words + i)) << i;
    return found;
}

// out += the second terms of `num_tokens` tokens, 64 at most, from work.token on.
template <Format format>
void add_seconds(const TileWork& work, int blocks, int num_tokens) {
    const uint64_t* words = work.x->flags + work.token;
    for (int begin = 0; begin < work.x->num_groups; begin += 64, words += work.x->num_tokens) {
        uint64_t any = 0;
        for (int t = 0; t < num_tokens; ++t) any |= words[t];
        for (; any; any &= any - 1) {
            const int bit = __builtin_ctzll(any);
            int tokens[64], count = 0;
            for (uint64_t found = all_words_with(bit, num_tokens, words); found; found &= found - 1) {
                tokens[count++] = work.token + __builtin_ctzll(found);
            }
            const Tiles tiles{count};
            for (int i = 0; i < tiles.count; ++i) {
                const AddSecond add = add_second_for<format>(tiles.size(i), blocks, std::make_index_sequence<MOST_TOKENS>());
                add(work, begin + bit, tokens + tiles.first(i));
            }
        }
    }
}

void add_bias(const float* bias, int rows, int num_tokens, float* out, int stride) {
    for (int t = 0; t < num_tokens; ++t, out += stride) {
        for (int row = 0; row < rows; row += BLOCK_ROWS) store(out + row, load(out + row) + load(bias + row));
    }
}

template <Format format>
void multiply_as(const Matrix& w, int block_begin, int block_end, const QuantizedRows& x, int token_begin, int token_end, float* out, int stride) {
    const int num_tokens = token_end - token_begin;
    const int num_tiles = num_tokens / TOKENS_AT_ONCE * Tiles{TOKENS_AT_ONCE}.count + Tiles{num_tokens % TOKENS_AT_ONCE}.count;
    const size_t block_bytes = w.bytes_per_block();
    // blocks outside, tokens inside: the weights of a tile stay in the first cache while the tokens pass
    for (int block = block_begin; block < block_end;) {
        const int blocks = std::min(blocks_at_once(num_tokens), block_end - block);
        const uint8_t* const data = w.data + size_t(block) * block_bytes;
        // of the next blocks, for each tile to ask for; one or two tokens are read so fast that the processor's own prefetcher does better
        const size_t share = num_tokens <= 2 ? 0 : blocks * block_bytes / num_tiles;
        const int bytes_a_step = static_cast<int>((share / x.num_groups + 63) / 64 * 64);
        const uint8_t* soon = data + blocks * block_bytes;
        for (int first = 0; first < num_tokens; first += TOKENS_AT_ONCE) {
            const Tiles tiles{std::min(TOKENS_AT_ONCE, num_tokens - first)};
            const TileWork work{
                .blocks = data,
                .block_bytes = block_bytes,
                .x = &x,
                .token = token_begin + first,
                .out = out + size_t(first) * stride + size_t(block - block_begin) * BLOCK_ROWS,
                .stride = stride,
                .soon = {soon, soon + share, bytes_a_step, 2 * blocks * block_bytes <= FIRST_CACHE},
            };
            set_firsts<format>(work, blocks, tiles, share);
            add_seconds<format>(work, blocks, tiles.num_tokens);
            if (w.bias) add_bias(w.bias + size_t(block) * BLOCK_ROWS, blocks * BLOCK_ROWS, tiles.num_tokens, work.out, stride);
            soon += share * tiles.count;
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
