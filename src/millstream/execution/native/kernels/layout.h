// How weights, quantised activations and keys and values lie in memory. Written by pack.cpp and by the kernels, read by the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ms {

constexpr int BLOCK_ROWS = 16;  // output rows that one register of a product holds
constexpr int GROUP = 32;       // inputs that share a scale, in weights and in activations
constexpr int SUPER_GROUPS = 8; // groups in a super-block of the K-quants

// A packed matrix is a run of blocks of 16 output rows; a block is a run of groups of 32 inputs; all of a group lies together, so that a
// product reads memory from front to back. In a group, weights stand in quads: the 4 inputs 4j..4j+3 of row 0, then of row 1, ... row 15
// are the 64 bytes of quad j. A register of a quad times 4 broadcast inputs adds to 16 outputs (vpdpbusd).
//
// Nibbles: byte i of the 64 at 64 * j holds byte i of quad j in its low half and of quad j + 4 in its high half, j from 0 to 3.
// All per-row numbers below are 16 in a run, one a row.
enum class Format : int32_t {
    q4,      // w = d (q - 8).           group: 256 nibble bytes, d fp16                                                 = 288 bytes
    q4_min,  // w = d q + m.             group: 256 nibble bytes, d fp16, m fp16                                         = 320 bytes
    q8,      // w = d (q - 128).         group: 512 bytes, d fp16                                                        = 544 bytes
    q4_k,    // w = d s q - dm t.        each 8 groups: d fp16, dm fp16 (64 bytes), then 8 groups of
             //                          256 nibble bytes, s u8, t u8                                                    = 2368 bytes
    q6_k,    // w = d s (q - 32).        each 8 groups: d fp16 (32 bytes), then 8 groups of 256 nibble bytes, 128 bytes of high bits
             //                          (bits 2j, 2j+1 of byte i of the 64 at 64 * h: the high bits of byte i of quad 4h + j),
             //                          s i8 of inputs 0-15, s i8 of inputs 16-31                                       = 3360 bytes
};

constexpr size_t block_bytes(Format format, int num_groups) {
    switch (format) {
        case Format::q4: return size_t(num_groups) * 288;
        case Format::q4_min: return size_t(num_groups) * 320;
        case Format::q8: return size_t(num_groups) * 544;
        case Format::q4_k: return size_t(num_groups / SUPER_GROUPS) * 2368;
        case Format::q6_k: return size_t(num_groups / SUPER_GROUPS) * 3360;
    }
    return 0;
}

// One matrix of a model. `rows` is a multiple of 16 (rows past the true ones are zero), inputs a multiple of 32.
struct Matrix {
    Format format;
    int rows;
    int num_groups;       // inputs / 32
    const uint8_t* data;  // 64-byte aligned; `rows / 16` blocks
    const float* bias;    // [rows], or null

    int num_blocks() const { return rows / BLOCK_ROWS; }
    size_t bytes_per_block() const { return block_bytes(format, num_groups); }
};

// Activations as scale * q.
struct Term {
    int8_t* q;      // [num_tokens, num_groups * 32], within -127..127
    float* scale;   // [num_tokens, num_groups]
    int32_t* sum;   // [num_tokens, num_groups]: sum of q, what a weight's zero point is multiplied with
};

// Rows of activations, 32 to a group. One run a row, so that the rows of any step can be addressed one by one.
struct QuantizedRows {
    int num_tokens, num_groups;
    Term first;
    Term second;        // of groups with a flag: what rounding to the first left over. Of others it holds anything
    float* scaled_sum;  // [num_tokens, num_groups]: sum of scale * (sum of q) over the terms, what a weight minimum is multiplied with
    uint64_t* flags;    // [flag_words(num_groups), num_tokens]: bit g % 64 of word g / 64 of a token: its group g has a second term
};

constexpr int flag_words(int num_groups) { return (num_groups + 63) / 64; }

enum class KVType : int32_t { f16, f32, i8 };

// Keys and values of one layer. A page is `page_size / 16` subpages of 16 tokens one after another; for each subpage and key-value head:
//   keys [head_dim][16 tokens], so that scores of 16 tokens are one register; values [16 tokens][head_dim];
//   with i8 also: scales of the 16 keys (float), scales of the 16 values (float).
// Order within a page: subpage, head, {keys, values, scales}.
struct KVLayer {
    KVType type;
    int num_kv_heads;
    int head_dim;  // a multiple of 16
    int page_size; // tokens, a multiple of 16
    uint8_t* data;

    [[gnu::always_inline]] inline size_t bytes_per_element() const { return type == KVType::f32 ? 4 : type == KVType::f16 ? 2 : 1; }
    size_t keys_bytes() const { return size_t(head_dim) * 16 * bytes_per_element(); }  // of one head in one subpage; values take as much
    size_t head_bytes() const { return 2 * keys_bytes() + (type == KVType::i8 ? 2 * 16 * sizeof(float) : 0); }
    size_t subpage_bytes() const { return head_bytes() * num_kv_heads; }
    size_t page_bytes() const { return subpage_bytes() * (page_size / 16); }
    // where head `head` of the 16 tokens that `position` lies among begins. Inlined always: a copy compiled for one instruction set must not
    // be what the linker gives to the others.
    [[gnu::always_inline]] inline uint8_t* head(const int32_t* pages, int position, int head) const {
        return data + size_t(pages[position / page_size]) * page_bytes() + size_t(position % page_size / 16) * subpage_bytes() + size_t(head) * head_bytes();
    }
};

}  // namespace ms
