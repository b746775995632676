// The table of kernels: one for each instruction set, chosen when the module is loaded. All work on one thread; `model.cpp` cuts the work.
//
// Every kernel computes an output element by the same operations in the same order, whatever else is computed with it: results do not
// depend on how a step is cut into rows, chunks, tasks or threads.
#pragma once

#include <cstdint>

#include "layout.h"

namespace ms {

enum class Activation : int32_t { silu, gelu_tanh, gelu };

constexpr double LARGE_GROUP = 2.0;  // see quantize

constexpr int PARTITION = 256;  // tokens of context whose softmax is taken on its own; the parts are merged in order

// Queries of one request that attend in one task: `count` consecutive tokens, and the `group` query heads that share key-value head `kv_head`.
struct Attend {
    const float* q;          // [count][stride]: the first query head of the group of the first token
    int stride;              // floats from one token's queries to the next one's
    int group;               // query heads that share the key-value head; they stand side by side, head_dim floats each
    int count;               // tokens
    int position;            // of the first token in its request
    const int32_t* pages;    // the request's block table
    int kv_head;
    int window;              // tokens a query sees, its own included; 0: all before it
    float scale;             // of q k
    float softcap;           // c tanh(s / c) of scores; 0: none
    int part_begin, part_end;// the partitions [p * PARTITION, (p + 1) * PARTITION) of context to look at
    // out, for token t, query head g and partition p, at index (t * group + g) * part_stride + (p - part_begin):
    int part_stride;
    float* part_max;         // the largest score (after scale and softcap); -inf where it sees nothing of the partition
    float* part_sum;         // sum of exp(score - max)
    float* part_out;         // [head_dim]: sum of exp(score - max) * value
};

// Which ids may be drawn: a bit for each, the lowest first, in blocks of sixteen. Ids behind the last block may not.
struct Mask {
    const uint16_t* blocks = nullptr;  // null: all may
    int num_blocks = 0;
};

// One row's part in sampling. The parameters are doubles as in Python: a temperature of 0.7 rounded to float draws other tokens.
struct Draw {
    const float* logits;  // [vocab]; -inf: may not be drawn
    Mask mask;
    double temperature;   // 0: the largest
    int32_t top_k;        // 0: all
    double top_p;         // 1: all
    double min_p;         // 0: all
    uint64_t seed;
    uint64_t index;       // of the output token
};

// what a draw needs to note: weights, and the candidates at a border with theirs (sampling.cpp)
constexpr size_t draw_scratch_bytes(int vocab) { return size_t(vocab + 16) * 24; }

struct Best {
    int32_t token;   // of the largest logit, the lowest among equals
    float logit;
    bool is_finite;  // no logit of the row is NaN or infinite
};

struct Kernels {
    const char* name;  // "avx512" or "avx2"

    // gemm.cpp. out[t][r] for tokens token_begin..token_end - 1 and rows of blocks block_begin..block_end - 1:
    // out + (t - token_begin) * stride + (row - block_begin * 16), bias included.
    void (*multiply)(const Matrix& w, int block_begin, int block_end, const QuantizedRows& x, int token_begin, int token_end, float* out, int stride);

    // quantize.cpp
    // quantize x.num_groups groups of `values` as row `token`: scale = max |x| / 127, q rounded to even. A group whose scale is above
    // LARGE_GROUP times the root mean square of the row's scales gets a second term, made in the same way of what the first left over.
    // A group below 1.5e-36 counts as zero; one that holds a NaN or an infinity gets the scale NaN, and so does all that is computed from
    // it. It gets no second term, and counts as zero in the mean.
    void (*quantize)(const float* values, const QuantizedRows& x, int token);
    // row `row` of a packed matrix as floats, `num_groups * 32` of them: the embedding of a token
    void (*unpack_row)(const Matrix& w, int row, float* out);

    // ops.cpp
    // states += delta (where not null; normed with delta_weight first where that is not null); out = rms_norm(states) * weight. n: any length
    void (*add_norm)(float* states, const float* delta, const float* delta_weight, const float* weight, float eps, int n, float* out);
    // out = activation(gate) * up
    void (*gate)(Activation activation, const float* gate, const float* up, int n, float* out);
    // one head: norm with weight (where not null), then rotate pairs (2i, 2i + 1) by cos_sin[2i], cos_sin[2i + 1]. In place.
    void (*norm_rotate)(float* head, const float* weight, float eps, const float* cos_sin, int head_dim);
    void (*scale)(float* values, float factor, int n);
    void (*softcap)(float* values, float cap, int n);  // cap * tanh(v / cap)
    bool (*all_finite)(const float* values, int n);

    // store_kv.cpp
    void (*store_kv)(const KVLayer& kv, const int32_t* pages, int position, int head, const float* key, const float* value);

    // attention.cpp
    void (*attend)(const KVLayer& kv, const Attend& work);
    // out[head_dim] = merged partitions of one query head, in order
    void (*merge)(const float* part_max, const float* part_sum, const float* part_out, int num_parts, int head_dim, float* out);

    // sampling.cpp
    Best (*argmax)(const float* logits, int n);
    // as millstream.execution.sampling draws; -1 where no token may be drawn: all are forbidden or -inf, or one that is not is NaN or +inf. `scratch`: draw_scratch_bytes(n)
    int32_t (*draw)(const Draw& row, int n, void* scratch);

    // logprobs.cpp
    // the logarithm of the sum of exponentials; NaN where a logit is NaN or +inf, or all are -inf
    double (*log_sum_exp)(const float* logits, int n);
    // ids of the `count` <= n largest, the largest first, equal ones by id. Where logits are NaN some ids may be 0.
    void (*most_likely)(const float* logits, int n, int count, int32_t* ids);

    // ceilings.cpp: rounds of products in registers, returning how many operations that was; and a pass over memory
    int64_t (*int8_products)(int64_t rounds);
    int64_t (*float_products)(int64_t rounds);
    float (*read_floats)(const float* values, int64_t n);
};

const Kernels* kernels_avx512();
const Kernels* kernels_avx2();

}  // namespace ms
