// What lies between products and attention: norms, activations, rotation. Any length; the last register of a row is a part of one.
#include "functions.h"
#include "parts.h"

#include <cmath>

namespace ms::MS_ISA {
namespace {

// body(i, count) for each register of n floats: 16 of them from i on, fewer at the end
template <typename Body>
MS_INLINE void for_registers(int n, Body body) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) body(i, LANES);
    if (i < n) body(i, n - i);
}

MS_INLINE F16x load_up_to(int count, const float* p) { return count == LANES ? load(p) : load_first(count, p); }

MS_INLINE void store_up_to(int count, float* p, F16x a) {
    if (count == LANES) store(p, a);
    else store_first(count, p, a);
}

// 1 / sqrt(mean of squares + eps)
MS_INLINE float inverse_rms(const float* values, float eps, int n) {
    F16x squares = zero();
    for_registers(n, [&](int i, int count) {
        F16x x = load_up_to(count, values + i);
        squares = fma(x, x, squares);
    });
    return 1.0f / std::sqrt(sum(squares) / static_cast<float>(n) + eps);
}

template <typename Function>
MS_INLINE void gate_with(const float* gate, const float* up, int n, float* out, Function function) {
    for_registers(n, [&](int i, int count) { store_up_to(count, out + i, function(load_up_to(count, gate + i)) * load_up_to(count, up + i)); });
}

MS_INLINE F16x gelu_tanh(F16x x) {
    // (1 + tanh(u)) / 2 is sigmoid(2 u); u = sqrt(2 / pi) (x + 0.044715 x^3)
    F16x u = fma(x * x * set1(0.044715f), x, x);
    return x * sigmoid(u * set1(2 * 0.79788456080286536f));
}

}  // namespace

void add_norm(float* states, const float* delta, const float* delta_weight, const float* weight, float eps, int n, float* out) {
    if (delta && delta_weight) {
        F16x factor = set1(inverse_rms(delta, eps, n));
        for_registers(n, [&](int i, int count) {
            F16x normed = load_up_to(count, delta + i) * factor * load_up_to(count, delta_weight + i);
            store_up_to(count, states + i, load_up_to(count, states + i) + normed);
        });
    } else if (delta) {
        for_registers(n, [&](int i, int count) { store_up_to(count, states + i, load_up_to(count, states + i) + load_up_to(count, delta + i)); });
    }
    F16x factor = set1(inverse_rms(states, eps, n));
    for_registers(n, [&](int i, int count) { store_up_to(count, out + i, load_up_to(count, states + i) * factor * load_up_to(count, weight + i)); });
}

void gate(Activation activation, const float* gate, const float* up, int n, float* out) {
    switch (activation) {
        case Activation::silu: return gate_with(gate, up, n, out, [](F16x x) { return x * sigmoid(x); });
        case Activation::gelu_tanh: return gate_with(gate, up, n, out, [](F16x x) { return gelu_tanh(x); });
        case Activation::gelu: return gate_with(gate, up, n, out, [](F16x x) { return x * normal_cdf(x); });
    }
}

void norm_rotate(float* head, const float* weight, float eps, const float* cos_sin, int head_dim) {
    F16x factor = set1(weight ? inverse_rms(head, eps, head_dim) : 1.0f);
    for (int d = 0; d < head_dim; d += LANES) {
        F16x pairs = load(head + d);
        if (weight) pairs = pairs * factor * load(weight + d);
        store(head + d, turn_pairs(pairs, load(cos_sin + d)));
    }
}

void scale(float* values, float factor, int n) {
    for_registers(n, [&](int i, int count) { store_up_to(count, values + i, load_up_to(count, values + i) * set1(factor)); });
}

void softcap(float* values, float cap, int n) {
    for_registers(n, [&](int i, int count) { store_up_to(count, values + i, tanh(load_up_to(count, values + i) / set1(cap)) * set1(cap)); });
}

bool all_finite(const float* values, int n) {
    F16x zeros = zero();  // 0 times NaN or infinity is NaN, and stays
    for_registers(n, [&](int i, int count) { zeros = fma(load_up_to(count, values + i), zero(), zeros); });
    return sum(zeros) == 0.0f;
}

}  // namespace ms::MS_ISA
