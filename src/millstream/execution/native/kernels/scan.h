// One look at a row of logits: what sampling and log probabilities begin with.
#pragma once

#include "ranking.h"

namespace ms::MS_ISA {

struct Scan {
    float largest, smallest;  // of those that are not NaN
    bool has_nan;
};

MS_INLINE Scan scan(const float* logits, int n) {
    F16x most = set1(NEVER), least = set1(-NEVER), nan = zero();
    for (int i = 0; i < n; i += LANES) {
        F16x x = load_up_to(n - i, logits + i, logits[0]);
        most = max(x, most);
        least = min(x, least);
        nan = nan + min(zero(), x);  // of numbers no greater than 0 no sum is NaN, unless one of them is
    }
    float total = sum(nan);
    return {largest(most), -largest(zero() - least), total != total};
}

// only at those that may be drawn; where a mask allows ids behind the last, the smallest is NEVER
MS_INLINE Scan scan_allowed(const Logits& logits) {
    F16x most = set1(NEVER), least = set1(-NEVER), nan = zero();
    for (int i = 0; i < logits.count; i += LANES) {
        const uint32_t lanes = logits.allowed(i);
        if (!lanes) continue;
        F16x x = logits.at(i);
        most = max(x, most);
        least = min(select(lanes, x, set1(-NEVER)), least);
        nan = nan + min(zero(), x);
    }
    float total = sum(nan);
    return {largest(most), -largest(zero() - least), total != total};
}

}  // namespace ms::MS_ISA
