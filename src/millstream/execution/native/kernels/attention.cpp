// Paged attention over keys and values in the layout of KVLayer, a partition of context at a time.
//
// Queries are every (token, query head of the group) of the work, flattened; a chunk of a few shares each key and value that it loads. A
// query's result does not depend on the chunk: each score is one chain of products in ascending dimension, each output element one chain
// in ascending position, and a chain has exactly the positions its query sees. Memory at positions that a query does not see may hold
// anything: their scores are replaced, and their values take part in no product.
#include "elements.h"
#include "functions.h"
#include "parts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ms::MS_ISA {
namespace {

constexpr int SUBPAGES = PARTITION / LANES;
constexpr float NEVER = -__builtin_inff();

// How many registers of sums fit beside what they are made of, and how many queries share a load.
constexpr int SUMS = REGISTERS / 2;
constexpr int MOST_QUERIES = SUMS / 2 < 8 ? 4 : 8;
// registers of keys or values that are worked on at once for a number of queries: 4, 2 or 1
constexpr int registers_at_once(int queries) { return queries * 4 <= SUMS ? 4 : queries * 2 <= SUMS ? 2 : 1; }

constexpr size_t CACHE_LINE = 64;  // bytes
// into the second level: a partition's values fill the first
MS_INLINE void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

// The part of a partition that a query sees, counted from the partition's first position.
struct Span {
    int begin, end;
    bool is_empty() const { return begin >= end; }
};

// What all chunks of a task share in one partition.
struct Partition {
    const KVLayer& kv;
    const Attend& work;
    int position;                     // its first
    int part;                         // its place in the output
    const uint8_t* subpages[SUBPAGES];// where the head's keys begin; only those that some query sees

    const uint8_t* values(int subpage) const { return subpages[subpage] + kv.keys_bytes(); }
    const float* key_scales(int subpage) const { return reinterpret_cast<const float*>(subpages[subpage] + 2 * kv.keys_bytes()); }
    const float* value_scales(int subpage) const { return key_scales(subpage) + LANES; }

    Span seen_by(int token) const {
        int last = work.position + token;
        int first_seen = work.window > 0 ? std::max(0, last - work.window + 1) : 0;
        return {std::max(first_seen - position, 0), std::min(last + 1 - position, PARTITION)};
    }
};

// A few queries and their numbers.
template <int N>
struct Chunk {
    const float* q[N];
    Span span[N];
    size_t out[N];                                // index in part_max, part_sum, part_out
    alignas(64) float scores[N][PARTITION];       // then weights
};

// scores[n][16 tokens of each subpage] = q[n] k, for R subpages from `subpage` on, of those before `end`
template <KVType type, int N, int R>
MS_INLINE void score(const Partition& part, Chunk<N>& chunk, int subpage, int end) {
    F16x sums[N][R];
    for (int n = 0; n < N; ++n)
        for (int r = 0; r < R; ++r) sums[n][r] = zero();
    const int head_dim = part.kv.head_dim;
    constexpr size_t row = LANES * bytes_of(type);  // bytes of keys that a dimension has
    const uint8_t* next[R];
    for (int r = 0; r < R; ++r) next[r] = part.subpages[std::min(subpage + R + r, end - 1)];
    for (int d = 0; d < head_dim; ++d) {
        // Runs are too short and too far apart for the machine to guess what comes next.
        if (d * row % CACHE_LINE == 0)
            for (int r = 0; r < R; ++r) {
                prefetch(part.values(subpage + r) + d * row);
                prefetch(next[r] + d * row);
            }
        F16x keys[R];
        for (int r = 0; r < R; ++r) keys[r] = load_elements<type>(part.subpages[subpage + r], size_t(d) * LANES);
        for (int n = 0; n < N; ++n) {
            F16x q = set1(chunk.q[n][d]);
            for (int r = 0; r < R; ++r) sums[n][r] = fma(q, keys[r], sums[n][r]);
        }
    }
    for (int n = 0; n < N; ++n)
        for (int r = 0; r < R; ++r) store(chunk.scores[n] + (subpage + r) * LANES, sums[n][r]);
}

template <KVType type, int N, int R>
MS_INLINE void score_all(const Partition& part, Chunk<N>& chunk, int subpage, int end) {
    for (; subpage + R <= end; subpage += R) score<type, N, R>(part, chunk, subpage, end);
    if constexpr (R > 1) score_all<type, N, R / 2>(part, chunk, subpage, end);
}

// the lanes of a subpage that lie within a span, and -inf in the others
MS_INLINE F16x only_seen(F16x scores, Span span, int subpage) {
    int begin = span.begin - subpage * LANES, end = span.end - subpage * LANES;
    if (begin > 0) scores = first(begin, set1(NEVER), scores);
    if (end < LANES) scores = first(end, scores, set1(NEVER));
    return scores;
}

// Turn a query's scores into weights exp(score - largest), times the values' scales; note the largest and the sum.
template <KVType type>
MS_INLINE void weigh(const Partition& part, Span span, float* scores, float* largest_score, float* sum_of_weights) {
    const Attend& work = part.work;
    const int begin = span.begin / LANES, end = (span.end + LANES - 1) / LANES;
    F16x most = set1(NEVER);
    for (int subpage = begin; subpage < end; ++subpage) {
        F16x s = load(scores + subpage * LANES) * set1(work.scale);
        if constexpr (type == KVType::i8) s = s * load(part.key_scales(subpage));
        if (work.softcap > 0) s = tanh(s / set1(work.softcap)) * set1(work.softcap);
        s = only_seen(s, span, subpage);
        store(scores + subpage * LANES, s);
        most = max(s, most);  // passes by NaN, which the weights keep
    }
    *largest_score = largest(most);
    F16x total = zero();
    for (int subpage = begin; subpage < end; ++subpage) {
        F16x weight = exp(load(scores + subpage * LANES) - set1(*largest_score));
        total = total + weight;
        if constexpr (type == KVType::i8) weight = weight * load(part.value_scales(subpage));
        store(scores + subpage * LANES, weight);
    }
    *sum_of_weights = sum(total);
}

// out[n][d .. d + 16 R) += weight * value, over a span that all N queries see. weights[n] is PARTITION floats after weights[n - 1].
template <KVType type, int N, int R>
MS_INLINE void accumulate_block(const Partition& part, const float* weights, Span span, int d, float* const* out) {
    F16x sums[N][R];
    for (int n = 0; n < N; ++n)
        for (int r = 0; r < R; ++r) sums[n][r] = load(out[n] + d + r * LANES);
    const int head_dim = part.kv.head_dim;
    for (int i = span.begin; i < span.end;) {
        const uint8_t* values = part.values(i / LANES);
        size_t element = size_t(i % LANES) * head_dim + d;
        for (int end = std::min(span.end, (i / LANES + 1) * LANES); i < end; ++i, element += head_dim) {
            F16x v[R];
            for (int r = 0; r < R; ++r) v[r] = load_elements<type>(values, element + r * LANES);
            for (int n = 0; n < N; ++n) {
                F16x weight = set1(weights[n * PARTITION + i]);
                for (int r = 0; r < R; ++r) sums[n][r] = fma(weight, v[r], sums[n][r]);
            }
        }
    }
    for (int n = 0; n < N; ++n)
        for (int r = 0; r < R; ++r) store(out[n] + d + r * LANES, sums[n][r]);
}

template <KVType type, int N, int R = registers_at_once(N)>
MS_INLINE void accumulate(const Partition& part, const float* weights, Span span, float* const* out, int d = 0) {
    if (span.is_empty()) return;
    for (; d + R * LANES <= part.kv.head_dim; d += R * LANES) accumulate_block<type, N, R>(part, weights, span, d, out);
    if constexpr (R > 1) accumulate<type, N, R / 2>(part, weights, span, out, d);
}

// Positions in order: those before what all see, what all see, those after. Only the middle can be shared.
template <KVType type, int N>
void accumulate_chunk(const Partition& part, const Chunk<N>& chunk, float* const* out) {
    Span shared = {0, PARTITION};
    for (int n = 0; n < N; ++n) shared = {std::max(shared.begin, chunk.span[n].begin), std::min(shared.end, chunk.span[n].end)};
    if (shared.is_empty()) shared.end = shared.begin;
    for (int n = 0; n < N; ++n) {
        Span before = {chunk.span[n].begin, std::min(shared.begin, chunk.span[n].end)};
        accumulate<type, 1>(part, chunk.scores[n], before, out + n);
    }
    accumulate<type, N>(part, chunk.scores[0], shared, out);
    for (int n = 0; n < N; ++n) {
        Span after = {std::max(shared.end, chunk.span[n].begin), chunk.span[n].end};
        accumulate<type, 1>(part, chunk.scores[n], after, out + n);
    }
}

// `first` is the flat index of the first query
template <KVType type, int N>
void attend_chunk(const Partition& part, int first) {
    const Attend& work = part.work;
    Chunk<N> chunk;
    float* out[N];
    Span all = {PARTITION, 0};
    for (int n = 0; n < N; ++n) {
        int token = (first + n) / work.group, head = (first + n) % work.group;
        chunk.q[n] = work.q + size_t(token) * work.stride + size_t(head) * part.kv.head_dim;
        chunk.span[n] = part.seen_by(token);
        chunk.out[n] = size_t(first + n) * work.part_stride + part.part;
        out[n] = work.part_out + chunk.out[n] * part.kv.head_dim;
        std::memset(out[n], 0, part.kv.head_dim * sizeof(float));
        work.part_max[chunk.out[n]] = NEVER;
        work.part_sum[chunk.out[n]] = 0;
        if (!chunk.span[n].is_empty()) all = {std::min(all.begin, chunk.span[n].begin), std::max(all.end, chunk.span[n].end)};
    }
    if (all.is_empty()) return;
    score_all<type, N, registers_at_once(N)>(part, chunk, all.begin / LANES, (all.end + LANES - 1) / LANES);
    for (int n = 0; n < N; ++n)
        if (!chunk.span[n].is_empty())
            weigh<type>(part, chunk.span[n], chunk.scores[n], work.part_max + chunk.out[n], work.part_sum + chunk.out[n]);
    accumulate_chunk<type, N>(part, chunk, out);
}

// the chunk of the n queries left, n up to N
template <KVType type, int N = MOST_QUERIES>
void attend_last(const Partition& part, int first, int n) {
    if (n == N) attend_chunk<type, N>(part, first);
    else if constexpr (N > 1) attend_last<type, N - 1>(part, first, n);
}

template <KVType type>
void attend_as(const KVLayer& kv, const Attend& work) {
    const int queries = work.count * work.group;
    for (int p = work.part_begin; p < work.part_end; ++p) {
        Partition part = {kv, work, p * PARTITION, p - work.part_begin, {}};
        Span seen = {part.seen_by(0).begin, part.seen_by(work.count - 1).end};
        for (int i = seen.begin / LANES; i * LANES < seen.end; ++i) part.subpages[i] = kv.head(work.pages, part.position + i * LANES, work.kv_head);
        int first = 0;
        for (; first + MOST_QUERIES <= queries; first += MOST_QUERIES) attend_chunk<type, MOST_QUERIES>(part, first);
        if (first < queries) attend_last<type>(part, first, queries - first);
    }
}

}  // namespace

void attend(const KVLayer& kv, const Attend& work) {
    switch (kv.type) {
        case KVType::f16: return attend_as<KVType::f16>(kv, work);
        case KVType::f32: return attend_as<KVType::f32>(kv, work);
        case KVType::i8: return attend_as<KVType::i8>(kv, work);
    }
}

void merge(const float* part_max, const float* part_sum, const float* part_out, int num_parts, int head_dim, float* out) {
    float most = NEVER;
    for (int p = 0; p < num_parts; ++p) most = std::max(most, part_max[p]);
    std::memset(out, 0, head_dim * sizeof(float));
    float total = 0;
    for (int p = 0; p < num_parts; ++p) {
        F16x factor = exp(set1(part_max[p] - most));  // 1 exactly for a part alone
        total = std::fma(part_sum[p], first_lane(factor), total);
        for (int d = 0; d < head_dim; d += LANES) store(out + d, fma(load(part_out + size_t(p) * head_dim + d), factor, load(out + d)));
    }
    for (int d = 0; d < head_dim; d += LANES) store(out + d, load(out + d) / set1(total));
}

}  // namespace ms::MS_ISA
