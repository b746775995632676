// The numbers that a draw's race is run with: the counter-based hash of millstream.execution.sampling (its sources are named there), for one
// token id and for sixteen in a row.
#pragma once

#include "simd.h"

namespace ms::MS_ISA {

MS_INLINE uint64_t mix(uint64_t value) {
    value += 0x9E3779B97F4A7C15;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
}
MS_INLINE uint64_t hash_key(uint64_t seed, uint64_t index) { return mix(mix(seed) + index); }

// The finaliser over any unsigned 32 bits with the operators below: one number or sixteen.
template <typename Words>
MS_INLINE Words spread(Words ids, Words low_key, Words high_key, Words a, Words b, Words c) {
    Words values = ids * a + low_key;
    values = (values ^ (values >> 16)) * b;
    values = values ^ high_key;
    values = (values ^ (values >> 15)) * c;
    return values ^ (values >> 16);
}
constexpr uint32_t SPREAD_A = 0x9E3779B1, SPREAD_B = 0x7FEB352D, SPREAD_C = 0x846CA68B;

// of the open interval (0, 1)
MS_INLINE double uniform(uint64_t key, uint32_t id) {
    uint32_t bits = spread(id, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), SPREAD_A, SPREAD_B, SPREAD_C);
    return (bits + 0.5) * 0x1p-32;
}

#ifdef __AVX512F__

struct U16x {  // sixteen unsigned integers of 32 bits
    __m512i v;
};

MS_INLINE U16x words(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
MS_INLINE U16x words_from(uint32_t x) {  // x, x + 1, ... x + 15
    return {_mm512_add_epi32(words(x).v, _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))};
}
MS_INLINE U16x operator+(U16x a, U16x b) { return {_mm512_add_epi32(a.v, b.v)}; }
MS_INLINE U16x operator*(U16x a, U16x b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
MS_INLINE U16x operator^(U16x a, U16x b) { return {_mm512_xor_si512(a.v, b.v)}; }
MS_INLINE U16x operator>>(U16x a, int n) { return {_mm512_srli_epi32(a.v, n)}; }
MS_INLINE F16x to_floats(U16x a) { return {_mm512_cvtepi32_ps(a.v)}; }  // of numbers below 2^31
MS_INLINE U16x bits_of(F16x a) { return {_mm512_castps_si512(a.v)}; }

#else  // AVX2

struct U16x {
    __m256i lo, hi;
};

MS_INLINE U16x words(uint32_t x) { return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))}; }
MS_INLINE U16x words_from(uint32_t x) {
    const __m256i steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_add_epi32(words(x).lo, steps), _mm256_add_epi32(words(x + 8).lo, steps)};
}
MS_INLINE U16x operator+(U16x a, U16x b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
MS_INLINE U16x operator*(U16x a, U16x b) { return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)}; }
MS_INLINE U16x operator^(U16x a, U16x b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
MS_INLINE U16x operator>>(U16x a, int n) { return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)}; }
MS_INLINE F16x to_floats(U16x a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
MS_INLINE U16x bits_of(F16x a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }

#endif

MS_INLINE U16x uniform_bits(uint64_t key, uint32_t first_id) {
    return spread(words_from(first_id), words(static_cast<uint32_t>(key)), words(static_cast<uint32_t>(key >> 32)), words(SPREAD_A), words(SPREAD_B),
                  words(SPREAD_C));
}

}  // namespace ms::MS_ISA
