// What the processor can do at most: loops of nothing but products, or nothing but reads. For benchmarks.
#include "dot.h"
#include "parts.h"

namespace ms::MS_ISA {

namespace {

constexpr int CHAINS = REGISTERS * 3 / 8;  // sums in flight: enough to hide the latency of each

}  // namespace

int64_t int8_products(int64_t rounds) {
    alignas(64) uint8_t weights[64];
    alignas(4) int8_t inputs[4] = {1, 2, 3, 4};
    for (int i = 0; i < 64; ++i) weights[i] = uint8_t(i % 16);
    const Quad w = load_quad(weights);
    const Inputs x = load_inputs(inputs);
    Dot<4, 0> sums[CHAINS];
    for (Dot<4, 0>& dot : sums) dot.start(0);
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
        for (Dot<4, 0>& dot : sums) {
            dot.add(w, x);
            asm volatile("" : "+m"(*const_cast<int8_t*>(inputs)));  // not known to repeat itself
        }
    }
    float total = 0;
    for (Dot<4, 0>& dot : sums) total += sum(dot.value());
    return total == -1.0f ? 0 : rounds * CHAINS * 2 * 64;  // the sums are used; two operations for each of 64 products
}

int64_t float_products(int64_t rounds) {
    F16x sums[CHAINS];
    for (F16x& s : sums) s = zero();
    const F16x x = set1(0.5f);
    for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
        for (F16x& s : sums) s = fma(x, s, x);
    }
    float total = 0;
    for (F16x& s : sums) total += sum(s);
    return total == -1.0f ? 0 : rounds * CHAINS * 2 * LANES;
}

float read_floats(const float* values, int64_t n) {
    F16x sums[8];
    for (F16x& s : sums) s = zero();
    for (int64_t i = 0; i + 8 * LANES <= n; i += 8 * LANES) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) sums[j] = max(sums[j], load(values + i + j * LANES));
    }
    float most = 0;
    for (F16x& s : sums) most = largest(s) > most ? largest(s) : most;
    return most;
}

}  // namespace ms::MS_ISA
