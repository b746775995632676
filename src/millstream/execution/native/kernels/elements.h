// How single keys and values are stored, for each KVType: floats of 4 or 2 bytes, or bytes that a scale belongs to.
#pragma once

#include "layout.h"
#include "simd.h"

namespace ms::MS_ISA {

constexpr size_t bytes_of(KVType type) { return type == KVType::f32 ? 4 : type == KVType::f16 ? 2 : 1; }

// 16 elements from element `i` of a run; int8: without the scale
template <KVType type>
MS_INLINE F16x load_elements(const uint8_t* run, size_t i) {
    if constexpr (type == KVType::f32) return load(reinterpret_cast<const float*>(run) + i);
    else if constexpr (type == KVType::f16) return load_half(reinterpret_cast<const uint16_t*>(run) + i);
    else return load_i8(reinterpret_cast<const int8_t*>(run) + i);
}

// 16 elements; int8: divided by `scale`
template <KVType type>
MS_INLINE void store_elements(uint8_t* run, F16x x, float scale) {
    if constexpr (type == KVType::f32) store(reinterpret_cast<float*>(run), x);
    else if constexpr (type == KVType::f16) store_half(reinterpret_cast<uint16_t*>(run), x);
    else store_i8(reinterpret_cast<int8_t*>(run), scale == 0 ? zero() : x / set1(scale));
}

}  // namespace ms::MS_ISA
