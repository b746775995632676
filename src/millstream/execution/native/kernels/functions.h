// Functions of sixteen floats that activations and soft caps need. Coefficients are minimax fits (weighted least squares, iterated) made for
// these files; the errors named are those of the fit, before rounding. NaN stays NaN.
#pragma once

#include "simd.h"

namespace ms::MS_ISA {

// Relative error 3e-9 below 0.6, where the other form would cancel.
MS_INLINE F16x tanh(F16x x) {
    F16x size = abs(x);
    F16x z = x * x;
    F16x p = set1(-0.005895158275961876f);
    p = fma(p, z, set1(0.020795971155166626f));
    p = fma(p, z, set1(-0.053783830255270004f));
    p = fma(p, z, set1(0.13331924378871918f));
    p = fma(p, z, set1(-0.33333298563957214f));
    F16x near = fma(p * z, x, x);
    F16x far = set1(1.0f) - set1(2.0f) / (exp(size + size) + set1(1.0f));
    far = if_less(x, zero(), zero() - far, far);
    return if_less(size, set1(0.6f), near, far);
}

MS_INLINE F16x sigmoid(F16x x) { return set1(1.0f) / (set1(1.0f) + exp(zero() - x)); }

// 1 - erf(a) for a >= 0, as e^(-a a) k P(k) with k = 1 / (1 + a / 2), the form of Abramowitz and Stegun 7.1.26. Relative error 5e-8.
MS_INLINE F16x erfc_of_positive(F16x a) {
    F16x k = set1(1.0f) / fma(a, set1(0.5f), set1(1.0f));
    F16x p = set1(-0.0590689517557621f);
    p = fma(p, k, set1(0.2845749258995056f));
    p = fma(p, k, set1(-0.4871998131275177f));
    p = fma(p, k, set1(0.27806708216667175f));
    p = fma(p, k, set1(-0.026625603437423706f));
    p = fma(p, k, set1(0.2026868462562561f));
    p = fma(p, k, set1(0.2431037724018097f));
    p = fma(p, k, set1(0.282375305891037f));
    p = fma(p, k, set1(0.28208643198013306f));
    return p * k * exp(zero() - a * a);
}

// the normal distribution function: (1 + erf(x / sqrt 2)) / 2, without cancelling where x is negative
MS_INLINE F16x normal_cdf(F16x x) {
    F16x tail = set1(0.5f) * erfc_of_positive(abs(x) * set1(0.70710678118654752f));
    return if_less(x, zero(), tail, set1(1.0f) - tail);
}

}  // namespace ms::MS_ISA
