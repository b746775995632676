// Eight doubles as one value, in the manner of simd.h: what sampling adds up must not hang on the rounding of floats.
#pragma once

#include "simd.h"

namespace ms::MS_ISA {

constexpr int DOUBLES = 8;

#ifdef __AVX512F__

struct D8x {
    __m512d v;
};

MS_INLINE D8x doubles(double x) { return {_mm512_set1_pd(x)}; }
MS_INLINE D8x load(const double* p) { return {_mm512_loadu_pd(p)}; }
MS_INLINE void store(double* p, D8x a) { _mm512_storeu_pd(p, a.v); }
MS_INLINE D8x operator+(D8x a, D8x b) { return {_mm512_add_pd(a.v, b.v)}; }
MS_INLINE D8x operator-(D8x a, D8x b) { return {_mm512_sub_pd(a.v, b.v)}; }
MS_INLINE D8x operator*(D8x a, D8x b) { return {_mm512_mul_pd(a.v, b.v)}; }
MS_INLINE D8x operator/(D8x a, D8x b) { return {_mm512_div_pd(a.v, b.v)}; }
MS_INLINE D8x fma(D8x a, D8x b, D8x c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
MS_INLINE D8x max(D8x a, D8x b) { return {_mm512_max_pd(a.v, b.v)}; }
MS_INLINE D8x round(D8x a) { return {_mm512_roundscale_pd(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
MS_INLINE D8x low_doubles(F16x a) { return {_mm512_cvtps_pd(low_half(a))}; }
MS_INLINE D8x high_doubles(F16x a) { return {_mm512_cvtps_pd(high_half(a))}; }
// x where a > b, 0 elsewhere
MS_INLINE D8x if_greater(D8x a, D8x b, D8x x) { return {_mm512_maskz_mov_pd(_mm512_cmp_pd_mask(a.v, b.v, _CMP_GT_OQ), x.v)}; }
// x * 2^n for whole n within -1022..1023: the low bits of n + 1.5 * 2^52 are n
MS_INLINE D8x times_power_of_two(D8x x, D8x n) {
    __m512i bits = _mm512_castpd_si512(_mm512_add_pd(n.v, _mm512_set1_pd(6755399441055744.0)));
    bits = _mm512_slli_epi64(_mm512_add_epi64(bits, _mm512_set1_epi64(1023)), 52);
    return {_mm512_mul_pd(x.v, _mm512_castsi512_pd(bits))};
}
MS_INLINE __m256d low_half(D8x a) { return _mm512_castpd512_pd256(a.v); }
MS_INLINE __m256d high_half(D8x a) { return _mm512_extractf64x4_pd(a.v, 1); }

#else  // AVX2

struct D8x {
    __m256d lo, hi;
};

MS_INLINE D8x doubles(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
MS_INLINE D8x load(const double* p) { return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)}; }
MS_INLINE void store(double* p, D8x a) {
    _mm256_storeu_pd(p, a.lo);
    _mm256_storeu_pd(p + 4, a.hi);
}
MS_INLINE D8x operator+(D8x a, D8x b) { return {_mm256_add_pd(a.lo, b.lo), _mm256_add_pd(a.hi, b.hi)}; }
MS_INLINE D8x operator-(D8x a, D8x b) { return {_mm256_sub_pd(a.lo, b.lo), _mm256_sub_pd(a.hi, b.hi)}; }
MS_INLINE D8x operator*(D8x a, D8x b) { return {_mm256_mul_pd(a.lo, b.lo), _mm256_mul_pd(a.hi, b.hi)}; }
MS_INLINE D8x operator/(D8x a, D8x b) { return {_mm256_div_pd(a.lo, b.lo), _mm256_div_pd(a.hi, b.hi)}; }
MS_INLINE D8x fma(D8x a, D8x b, D8x c) { return {_mm256_fmadd_pd(a.lo, b.lo, c.lo), _mm256_fmadd_pd(a.hi, b.hi, c.hi)}; }
MS_INLINE D8x max(D8x a, D8x b) { return {_mm256_max_pd(a.lo, b.lo), _mm256_max_pd(a.hi, b.hi)}; }
MS_INLINE D8x round(D8x a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_pd(a.lo, mode), _mm256_round_pd(a.hi, mode)};
}
MS_INLINE D8x doubles_half(__m256 a) { return {_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))}; }
MS_INLINE D8x low_doubles(F16x a) { return doubles_half(a.lo); }
MS_INLINE D8x high_doubles(F16x a) { return doubles_half(a.hi); }
MS_INLINE D8x if_greater(D8x a, D8x b, D8x x) {
    return {_mm256_and_pd(_mm256_cmp_pd(a.lo, b.lo, _CMP_GT_OQ), x.lo), _mm256_and_pd(_mm256_cmp_pd(a.hi, b.hi, _CMP_GT_OQ), x.hi)};
}
MS_INLINE __m256d times_power_of_two_half(__m256d x, __m256d n) {
    __m256i bits = _mm256_castpd_si256(_mm256_add_pd(n, _mm256_set1_pd(6755399441055744.0)));
    bits = _mm256_slli_epi64(_mm256_add_epi64(bits, _mm256_set1_epi64x(1023)), 52);
    return _mm256_mul_pd(x, _mm256_castsi256_pd(bits));
}
MS_INLINE D8x times_power_of_two(D8x x, D8x n) { return {times_power_of_two_half(x.lo, n.lo), times_power_of_two_half(x.hi, n.hi)}; }
MS_INLINE __m256d low_half(D8x a) { return a.lo; }
MS_INLINE __m256d high_half(D8x a) { return a.hi; }

#endif

MS_INLINE double sum(D8x a) {
    __m256d four = _mm256_add_pd(low_half(a), high_half(a));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// e^x for x <= 0, to within 2 ulp; 0 below -708. As exp of floats, with the Taylor polynomial of degree 13.
MS_INLINE D8x exp_of_negative(D8x x) {
    const D8x below = doubles(-708.0);
    D8x clamped = max(x, below);
    D8x n = round(clamped * doubles(1.4426950408889634074));
    D8x r = fma(n, doubles(-6.93147180369123816490e-1), clamped);
    r = fma(n, doubles(-1.90821492927058770002e-10), r);
    D8x p = doubles(1.0 / 6227020800.0);
    p = fma(p, r, doubles(1.0 / 479001600.0));
    p = fma(p, r, doubles(1.0 / 39916800.0));
    p = fma(p, r, doubles(1.0 / 3628800.0));
    p = fma(p, r, doubles(1.0 / 362880.0));
    p = fma(p, r, doubles(1.0 / 40320.0));
    p = fma(p, r, doubles(1.0 / 5040.0));
    p = fma(p, r, doubles(1.0 / 720.0));
    p = fma(p, r, doubles(1.0 / 120.0));
    p = fma(p, r, doubles(1.0 / 24.0));
    p = fma(p, r, doubles(1.0 / 6.0));
    p = fma(p, r, doubles(0.5));
    p = fma(p, r, doubles(1.0));
    p = fma(p, r, doubles(1.0));
    return if_greater(x, below, times_power_of_two(p, n));
}

}  // namespace ms::MS_ISA
