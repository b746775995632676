// Group<format>: one group of 32 inputs of a block of 16 rows, as it lies in memory (layout.h), read by the kernels.
//
// A group has PARTS runs of inputs with a scale each: w = scale(part) * (q - ZERO) + minimum(); weights<quad> are the q of a quad.
// Included only by sources that are compiled once for each instruction set.
#pragma once

#include <type_traits>

#include "dot.h"

namespace ms::MS_ISA {

constexpr int NIBBLE_BYTES = GROUP * BLOCK_ROWS / 2;

// quad `quad` of 0 to 7 from nibble bytes
template <int quad>
MS_INLINE Quad from_nibbles(const uint8_t* nibbles) {
    Quad both = load_quad(nibbles + 64 * (quad % 4));
    return quad < 4 ? low_nibbles(both) : high_nibbles(both);
}

MS_INLINE F16x load_halves(const uint8_t* p) { return load_half(reinterpret_cast<const uint16_t*>(p)); }

template <Format format>
struct Group;

template <>
struct Group<Format::q4> {
    static constexpr int BITS = 4, ZERO = 8, PARTS = 1, BYTES = 288;
    static constexpr bool HAS_MINIMUM = false;
    const uint8_t* at;

    static MS_INLINE Group find(const uint8_t* block, int g) { return {block + size_t(g) * BYTES}; }
    template <int quad>
    MS_INLINE Quad weights() const {
        return from_nibbles<quad>(at);
    }
    MS_INLINE F16x scale(int) const { return load_halves(at + NIBBLE_BYTES); }
};

template <>
struct Group<Format::q4_min> {
    static constexpr int BITS = 4, ZERO = 0, PARTS = 1, BYTES = 320;
    static constexpr bool HAS_MINIMUM = true;
    const uint8_t* at;

    static MS_INLINE Group find(const uint8_t* block, int g) { return {block + size_t(g) * BYTES}; }
    template <int quad>
    MS_INLINE Quad weights() const {
        return from_nibbles<quad>(at);
    }
    MS_INLINE F16x scale(int) const { return load_halves(at + NIBBLE_BYTES); }
    MS_INLINE F16x minimum() const { return load_halves(at + NIBBLE_BYTES + 32); }
};

template <>
struct Group<Format::q8> {
    static constexpr int BITS = 8, ZERO = 128, PARTS = 1, BYTES = 544;
    static constexpr bool HAS_MINIMUM = false;
    const uint8_t* at;

    static MS_INLINE Group find(const uint8_t* block, int g) { return {block + size_t(g) * BYTES}; }
    template <int quad>
    MS_INLINE Quad weights() const {
        return load_quad(at + 64 * quad);
    }
    MS_INLINE F16x scale(int) const { return load_halves(at + 512); }
};

template <>
struct Group<Format::q4_k> {
    static constexpr int BITS = 4, ZERO = 0, PARTS = 1, BYTES = NIBBLE_BYTES + 32;
    static constexpr bool HAS_MINIMUM = true;
    const uint8_t* super;
    const uint8_t* at;

    static MS_INLINE Group find(const uint8_t* block, int g) {
        const uint8_t* super = block + size_t(g / SUPER_GROUPS) * 2368;
        return {super, super + 64 + size_t(g % SUPER_GROUPS) * BYTES};
    }
    template <int quad>
    MS_INLINE Quad weights() const {
        return from_nibbles<quad>(at);
    }
    MS_INLINE F16x scale(int) const { return load_halves(super) * load_u8(at + NIBBLE_BYTES); }
    MS_INLINE F16x minimum() const { return zero() - load_halves(super + 32) * load_u8(at + NIBBLE_BYTES + 16); }
};

template <>
struct Group<Format::q6_k> {
    static constexpr int BITS = 6, ZERO = 32, PARTS = 2, BYTES = NIBBLE_BYTES + 128 + 32;
    static constexpr bool HAS_MINIMUM = false;
    const uint8_t* super;
    const uint8_t* at;

    static MS_INLINE Group find(const uint8_t* block, int g) {
        const uint8_t* super = block + size_t(g / SUPER_GROUPS) * 3360;
        return {super, super + 32 + size_t(g % SUPER_GROUPS) * BYTES};
    }
    template <int quad>
    MS_INLINE Quad weights() const {
        return with_high_bits<quad % 4>(from_nibbles<quad>(at), load_quad(at + NIBBLE_BYTES + 64 * (quad / 4)));
    }
    MS_INLINE F16x scale(int part) const {
        return load_halves(super) * load_i8(reinterpret_cast<const int8_t*>(at + NIBBLE_BYTES + 128 + 16 * part));
    }
};

// use(the format as a type, whose call is the constant)
template <class Use>
MS_INLINE void with_format(Format format, Use&& use) {
    switch (format) {
        case Format::q4: return use(std::integral_constant<Format, Format::q4>());
        case Format::q4_min: return use(std::integral_constant<Format, Format::q4_min>());
        case Format::q8: return use(std::integral_constant<Format, Format::q8>());
        case Format::q4_k: return use(std::integral_constant<Format, Format::q4_k>());
        case Format::q6_k: return use(std::integral_constant<Format, Format::q6_k>());
    }
}

}  // namespace ms::MS_ISA
