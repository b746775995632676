// Writing keys and values to their place in a page, in the layout of KVLayer.
#include "elements.h"
#include "parts.h"

#include <cfloat>
#include <cstring>

namespace ms::MS_ISA {
namespace {

// x = scale * q with q within -127..127. Where a value is not finite the scale is NaN, and so is all that is read back.
MS_INLINE float int8_scale(const float* values, int n) {
    F16x most = zero(), zeros = zero();
    for (int d = 0; d < n; d += LANES) {
        F16x x = load(values + d);
        most = max(abs(x), most);
        zeros = fma(x, zero(), zeros);
    }
    float scale = largest(most) / 127.0f;
    if (scale < FLT_MIN) scale = 0;
    return scale + sum(zeros);
}

template <KVType type>
void store_as(const KVLayer& kv, uint8_t* head, int lane, const float* key, const float* value) {
    constexpr size_t element = bytes_of(type);
    uint8_t* values = head + kv.keys_bytes();
    float key_scale = 0, value_scale = 0;
    if constexpr (type == KVType::i8) {
        key_scale = int8_scale(key, kv.head_dim);
        value_scale = int8_scale(value, kv.head_dim);
        float* scales = reinterpret_cast<float*>(head + 2 * kv.keys_bytes());
        scales[lane] = key_scale;
        scales[LANES + lane] = value_scale;
    }
    for (int d = 0; d < kv.head_dim; d += LANES) {
        uint8_t run[LANES * element];
        store_elements<type>(run, load(key + d), key_scale);
        for (int i = 0; i < LANES; ++i) std::memcpy(head + (size_t(d + i) * LANES + lane) * element, run + i * element, element);
        store_elements<type>(values + (size_t(lane) * kv.head_dim + d) * element, load(value + d), value_scale);
    }
}

}  // namespace

void store_kv(const KVLayer& kv, const int32_t* pages, int position, int head, const float* key, const float* value) {
    uint8_t* place = kv.head(pages, position, head);
    switch (kv.type) {
        case KVType::f16: return store_as<KVType::f16>(kv, place, position % LANES, key, value);
        case KVType::f32: return store_as<KVType::f32>(kv, place, position % LANES, key, value);
        case KVType::i8: return store_as<KVType::i8>(kv, place, position % LANES, key, value);
    }
}

}  // namespace ms::MS_ISA
