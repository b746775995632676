// Dot: integer products of 16 rows of weights with 4 inputs at a time, the same integers on every instruction set.
//
// Weights are unsigned bytes w + ZERO below 2^BITS, inputs signed bytes within -127..127; a Dot adds up to a group of 32 inputs.
// Included only by sources that are compiled once for each instruction set.
#pragma once

#include <cstring>

#include "layout.h"
#include "simd.h"

namespace ms::MS_ISA {

MS_INLINE int32_t four_bytes(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof four);
    return four;
}

// the sum of 16 inputs: psadbw sums unsigned bytes, so they are moved up by 128 and the sum down again
MS_INLINE int32_t sum_of_16(const int8_t* p) {
    __m128i bytes = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(-128));
    __m128i halves = _mm_sad_epu8(bytes, _mm_setzero_si128());
    return _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 16 * 128;
}

#ifdef __AVX512F__

struct Quad {  // 4 inputs' weights of 16 rows, 4 bytes a row
    __m512i v;
};

struct Inputs {  // the 4 inputs, once for each row
    __m512i v;
};

MS_INLINE Quad load_quad(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
MS_INLINE void store_quad(uint8_t* p, Quad a) { _mm512_storeu_si512(p, a.v); }
MS_INLINE Inputs load_inputs(const int8_t* p) { return {_mm512_set1_epi32(four_bytes(p))}; }
MS_INLINE Quad low_nibbles(Quad a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
MS_INLINE Quad high_nibbles(Quad a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }
// bits 2j and 2j + 1 of each byte become bits 4 and 5 of `nibbles`
template <int j>
MS_INLINE Quad with_high_bits(Quad nibbles, Quad bits) {
    __m512i moved = j < 2 ? _mm512_slli_epi16(bits.v, j < 2 ? 4 - 2 * j : 0) : _mm512_srli_epi16(bits.v, j < 2 ? 0 : 2 * j - 4);
    return {_mm512_ternarylogic_epi32(nibbles.v, moved, _mm512_set1_epi8(0x30), 0xF8)};  // nibbles | (moved & 0x30)
}

template <int BITS, int ZERO>
struct Dot {
    __m512i v;

    // `sum` of the inputs that will be added
    MS_INLINE void start(int32_t sum) { v = _mm512_set1_epi32(-ZERO * sum); }
    MS_INLINE void add(Quad weights, Inputs inputs) { v = _mm512_dpbusd_epi32(v, weights.v, inputs.v); }
    MS_INLINE F16x value() const { return {_mm512_cvtepi32_ps(v)}; }
};

#else  // AVX2

struct Quad {
    __m256i lo, hi;  // rows 0-7, rows 8-15
};

struct Inputs {
    __m256i v;
};

MS_INLINE Quad load_quad(const uint8_t* p) {
    const __m256i* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
MS_INLINE void store_quad(uint8_t* p, Quad a) {
    __m256i* q = reinterpret_cast<__m256i*>(p);
    _mm256_storeu_si256(q, a.lo);
    _mm256_storeu_si256(q + 1, a.hi);
}
MS_INLINE Inputs load_inputs(const int8_t* p) { return {_mm256_set1_epi32(four_bytes(p))}; }
MS_INLINE Quad low_nibbles(Quad a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
MS_INLINE Quad high_nibbles(Quad a) { return low_nibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)}); }
template <int j>
MS_INLINE __m256i with_high_bits(__m256i nibbles, __m256i bits) {
    __m256i moved = j < 2 ? _mm256_slli_epi16(bits, j < 2 ? 4 - 2 * j : 0) : _mm256_srli_epi16(bits, j < 2 ? 0 : 2 * j - 4);
    return _mm256_or_si256(nibbles, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
}
template <int j>
MS_INLINE Quad with_high_bits(Quad nibbles, Quad bits) {
    return {with_high_bits<j>(nibbles.lo, bits.lo), with_high_bits<j>(nibbles.hi, bits.hi)};
}

// vpmaddubsw adds two products in 16 bits and saturates. Of 4-bit weights the sums of all 8 quads of a group fit: 8 * 2 * 15 * 127 =
// 30480, so they are widened once, at the end; of 6-bit ones those of one quad: 2 * 63 * 127 = 16002. Bytes take their zero point off
// first and give their sign to the input: 2 * 128 * 127 = 32512.
template <int BITS, int ZERO>
struct Dot {
    __m256i lo, hi;  // rows 0-7, rows 8-15: 32 bits a row; with BITS == 4 two sums of 16 bits a row
    int32_t base;

    MS_INLINE void start(int32_t sum) {
        lo = hi = _mm256_setzero_si256();
        base = BITS == 8 ? 0 : -ZERO * sum;
    }
    MS_INLINE void add(Quad weights, Inputs inputs) {
        lo = add_half(lo, weights.lo, inputs.v);
        hi = add_half(hi, weights.hi, inputs.v);
    }
    MS_INLINE F16x value() const {
        const __m256i from = _mm256_set1_epi32(base);
        const __m256i low = BITS == 4 ? widen(lo) : lo, high = BITS == 4 ? widen(hi) : hi;
        return {_mm256_cvtepi32_ps(_mm256_add_epi32(low, from)), _mm256_cvtepi32_ps(_mm256_add_epi32(high, from))};
    }

private:
    static MS_INLINE __m256i widen(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }
    static MS_INLINE __m256i add_half(__m256i acc, __m256i weights, __m256i inputs) {
        if constexpr (BITS == 4) {
            return _mm256_add_epi16(acc, _mm256_maddubs_epi16(weights, inputs));
        } else if constexpr (BITS == 6) {
            return _mm256_add_epi32(acc, widen(_mm256_maddubs_epi16(weights, inputs)));
        } else {
            static_assert(ZERO == 128);
            __m256i w = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
            return _mm256_add_epi32(acc, widen(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(inputs, w))));
        }
    }
};

#endif

}  // namespace ms::MS_ISA
