// What each source of kernels defines, for table.cpp. Meanings are in kernels.h.
#pragma once

#include "kernels.h"

namespace ms::MS_ISA {

// gemm.cpp
void multiply(const Matrix& w, int block_begin, int block_end, const QuantizedRows& x, int token_begin, int token_end, float* out, int stride);

// quantize.cpp
void quantize(const float* values, const QuantizedRows& x, int token);
void unpack_row(const Matrix& w, int row, float* out);

// ops.cpp
void add_norm(float* states, const float* delta, const float* delta_weight, const float* weight, float eps, int n, float* out);
void gate(Activation activation, const float* gate, const float* up, int n, float* out);
void norm_rotate(float* head, const float* weight, float eps, const float* cos_sin, int head_dim);
void scale(float* values, float factor, int n);
void softcap(float* values, float cap, int n);
bool all_finite(const float* values, int n);

// store_kv.cpp
void store_kv(const KVLayer& kv, const int32_t* pages, int position, int head, const float* key, const float* value);

// attention.cpp
void attend(const KVLayer& kv, const Attend& work);
void merge(const float* part_max, const float* part_sum, const float* part_out, int num_parts, int head_dim, float* out);

// sampling.cpp
Best argmax(const float* logits, int n);
int32_t draw(const Draw& row, int n, void* scratch);

// logprobs.cpp
double log_sum_exp(const float* logits, int n);
void most_likely(const float* logits, int n, int count, int32_t* ids);

// ceilings.cpp
int64_t int8_products(int64_t rounds);
int64_t float_products(int64_t rounds);
float read_floats(const float* values, int64_t n);

}  // namespace ms::MS_ISA
