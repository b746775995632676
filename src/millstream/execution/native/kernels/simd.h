// Sixteen floats as one value, the same on every instruction set: one AVX-512 register or two AVX2 ones.
//
// Included only by sources that are compiled once for each instruction set (see CMakeLists.txt), inside namespace MS_ISA. Both versions
// do the same operations in the same order, so their results are equal bit for bit. Products that are added are always fused.
#pragma once

#include <immintrin.h>

#include <cstdint>

#ifndef MS_ISA
#error "MS_ISA names the namespace of the instruction set: avx512 or avx2"
#endif

#define MS_INLINE inline __attribute__((always_inline))

namespace ms::MS_ISA {

constexpr int LANES = 16;

#ifdef __AVX512F__

constexpr int REGISTERS = 32;  // values that the machine's registers hold

struct F16x {  // sixteen floats
    __m512 v;
};

MS_INLINE F16x zero() { return {_mm512_setzero_ps()}; }
MS_INLINE F16x set1(float x) { return {_mm512_set1_ps(x)}; }
MS_INLINE F16x load(const float* p) { return {_mm512_loadu_ps(p)}; }
MS_INLINE void store(float* p, F16x a) { _mm512_storeu_ps(p, a.v); }
MS_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }
// the first n of sixteen, and 0 in the other lanes; touches no memory past them
MS_INLINE F16x load_first(int n, const float* p) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
MS_INLINE void store_first(int n, float* p, F16x a) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
MS_INLINE F16x load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
MS_INLINE void store_half(uint16_t* p, F16x a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
MS_INLINE F16x load_i8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
MS_INLINE F16x load_u8(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// round to the nearest integer, ties to even; the caller keeps the values within -128..127
MS_INLINE void store_i8(int8_t* p, F16x a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
MS_INLINE F16x operator+(F16x a, F16x b) { return {_mm512_add_ps(a.v, b.v)}; }
MS_INLINE F16x operator-(F16x a, F16x b) { return {_mm512_sub_ps(a.v, b.v)}; }
MS_INLINE F16x operator*(F16x a, F16x b) { return {_mm512_mul_ps(a.v, b.v)}; }
MS_INLINE F16x operator/(F16x a, F16x b) { return {_mm512_div_ps(a.v, b.v)}; }
MS_INLINE F16x fma(F16x a, F16x b, F16x c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// of max and min: b where either is NaN
MS_INLINE F16x max(F16x a, F16x b) { return {_mm512_max_ps(a.v, b.v)}; }
MS_INLINE F16x min(F16x a, F16x b) { return {_mm512_min_ps(a.v, b.v)}; }
MS_INLINE F16x abs(F16x a) { return {_mm512_abs_ps(a.v)}; }
MS_INLINE F16x round(F16x a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a in the first n lanes, b in the others; n from 0 to 16
MS_INLINE F16x first(int n, F16x a, F16x b) {
    return {_mm512_mask_blend_ps(first_lanes(n), b.v, a.v)};
}
// yes where a < b, no elsewhere and where either is NaN
MS_INLINE F16x if_less(F16x a, F16x b, F16x yes, F16x no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
// a in the lanes that have a bit, b in the others
MS_INLINE F16x select(uint32_t lanes, F16x a, F16x b) { return {_mm512_mask_blend_ps(static_cast<__mmask16>(lanes), b.v, a.v)}; }
// a bit for each lane where a >= b
MS_INLINE uint32_t lanes_at_least(F16x a, F16x b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
// lanes are pairs (x, y) and (cos, sin): (x cos - y sin, y cos + x sin)
MS_INLINE F16x turn_pairs(F16x pairs, F16x cos_sin) {
    __m512 crossed = _mm512_mul_ps(_mm512_permute_ps(pairs.v, 0xB1), _mm512_movehdup_ps(cos_sin.v));
    return {_mm512_fmaddsub_ps(pairs.v, _mm512_moveldup_ps(cos_sin.v), crossed)};
}
// x * 2^n for whole n within -126..127
MS_INLINE F16x times_power_of_two(F16x x, F16x n) {
    __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
    return {_mm512_mul_ps(x.v, _mm512_castsi512_ps(bits))};
}
// a bit for each of the first n of eight words that has bit `bit`; touches no memory past them
MS_INLINE uint32_t words_with(int bit, int n, const uint64_t* p) {
    const __mmask8 first = static_cast<__mmask8>((1u << n) - 1);
    return _mm512_test_epi64_mask(_mm512_maskz_loadu_epi64(first, p), _mm512_set1_epi64(int64_t(1) << bit));
}
MS_INLINE __m256 low_half(F16x a) { return _mm512_castps512_ps256(a.v); }
MS_INLINE __m256 high_half(F16x a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1)); }

#else  // AVX2

constexpr int REGISTERS = 8;

struct F16x {
    __m256 lo, hi;
};

MS_INLINE F16x zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
MS_INLINE F16x set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
MS_INLINE F16x load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
MS_INLINE void store(float* p, F16x a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
MS_INLINE F16x load_half(const uint16_t* p) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
MS_INLINE void store_half(uint16_t* p, F16x a) {
    __m128i* q = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(q, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
MS_INLINE F16x load_i8(const int8_t* p) {
    __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)))};
}
MS_INLINE F16x load_u8(const uint8_t* p) {
    __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)))};
}
MS_INLINE void store_i8(int8_t* p, F16x a) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));  // lo0-3 hi0-3 lo4-7 hi4-7
    words = _mm256_permute4x64_epi64(words, 0xD8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
MS_INLINE __m256i first_lanes(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
MS_INLINE F16x load_first(int n, const float* p) {
    return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
MS_INLINE void store_first(int n, float* p, F16x a) {
    _mm256_maskstore_ps(p, first_lanes(n), a.lo);
    _mm256_maskstore_ps(p + 8, first_lanes(n - 8), a.hi);
}
MS_INLINE F16x operator+(F16x a, F16x b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
MS_INLINE F16x operator-(F16x a, F16x b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
MS_INLINE F16x operator*(F16x a, F16x b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
MS_INLINE F16x operator/(F16x a, F16x b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
MS_INLINE F16x fma(F16x a, F16x b, F16x c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
MS_INLINE F16x max(F16x a, F16x b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
MS_INLINE F16x min(F16x a, F16x b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
MS_INLINE F16x abs(F16x a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
MS_INLINE F16x round(F16x a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
MS_INLINE F16x first(int n, F16x a, F16x b) {
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(first_lanes(n))), _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(first_lanes(n - 8)))};
}
MS_INLINE F16x if_less(F16x a, F16x b, F16x yes, F16x no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)), _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
MS_INLINE __m256 eight_lanes(uint32_t lanes) {  // all bits set in the lanes that have one of the lowest eight
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(lanes)), each), each));
}
MS_INLINE F16x select(uint32_t lanes, F16x a, F16x b) {
    return {_mm256_blendv_ps(b.lo, a.lo, eight_lanes(lanes)), _mm256_blendv_ps(b.hi, a.hi, eight_lanes(lanes >> 8))};
}
MS_INLINE uint32_t lanes_at_least(F16x a, F16x b) {
    int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ)), hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
    return static_cast<uint32_t>(lo | hi << 8);
}
MS_INLINE __m256 turn_pairs_half(__m256 pairs, __m256 cos_sin) {
    __m256 crossed = _mm256_mul_ps(_mm256_permute_ps(pairs, 0xB1), _mm256_movehdup_ps(cos_sin));
    return _mm256_fmaddsub_ps(pairs, _mm256_moveldup_ps(cos_sin), crossed);
}
MS_INLINE F16x turn_pairs(F16x pairs, F16x cos_sin) { return {turn_pairs_half(pairs.lo, cos_sin.lo), turn_pairs_half(pairs.hi, cos_sin.hi)}; }
MS_INLINE __m256 times_power_of_two_half(__m256 x, __m256 n) {
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(x, _mm256_castsi256_ps(bits));
}
MS_INLINE F16x times_power_of_two(F16x x, F16x n) { return {times_power_of_two_half(x.lo, n.lo), times_power_of_two_half(x.hi, n.hi)}; }
MS_INLINE uint32_t four_words_with(int bit, int n, const uint64_t* p) {
    const __m256i first = _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
    const __m256i words = _mm256_maskload_epi64(reinterpret_cast<const long long*>(p), first);
    return _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_sll_epi64(words, _mm_cvtsi32_si128(63 - bit))));
}
MS_INLINE uint32_t words_with(int bit, int n, const uint64_t* p) { return four_words_with(bit, n, p) | four_words_with(bit, n - 4, p + 4) << 4; }
MS_INLINE __m256 low_half(F16x a) { return a.lo; }
MS_INLINE __m256 high_half(F16x a) { return a.hi; }

#endif

MS_INLINE float first_lane(F16x a) { return _mm256_cvtss_f32(low_half(a)); }

// the sixteen lanes as a tree: halves, quarters, pairs
MS_INLINE float sum(F16x a) {
    __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
MS_INLINE float largest(F16x a) {
    __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// e^x to within 2 ulp; 0 below -87.3, e^88 above 88, NaN where x is NaN. Argument reduced by ln 2 in two parts (Cody and Waite 1980), then
// the Taylor polynomial of degree 7 on [-ln2/2, ln2/2], whose remainder is below half an ulp. exp(0) is 1 exactly.
MS_INLINE F16x exp(F16x x) {
    const F16x below = set1(-87.33654f);
    F16x clamped = min(set1(88.0f), max(below, x));
    F16x n = round(clamped * set1(1.44269504088896341f));
    F16x r = fma(n, set1(-0.693359375f), clamped);
    r = fma(n, set1(2.12194440e-4f), r);
    F16x p = set1(1.0f / 5040);
    p = fma(p, r, set1(1.0f / 720));
    p = fma(p, r, set1(1.0f / 120));
    p = fma(p, r, set1(1.0f / 24));
    p = fma(p, r, set1(1.0f / 6));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return if_less(x, below, zero(), times_power_of_two(p, n));
}

}  // namespace ms::MS_ISA
