// What log probabilities need of a row of logits: the logarithm of the sum of exponentials, in doubles, and the ids of the largest.
#include "parts.h"
#include "scan.h"

#include <cmath>

namespace ms::MS_ISA {

double log_sum_exp(const float* logits, int n) {
    const Scan seen = scan(logits, n);
    if (seen.has_nan || !(std::fabs(seen.largest) < INFINITY)) return NAN;
    const D8x most = doubles(seen.largest);
    D8x low = doubles(0), high = doubles(0);
    for (int i = 0; i < n; i += LANES) {
        F16x x = load_up_to(n - i, logits + i, NEVER);
        low = low + exp_of_negative(low_doubles(x) - most);
        high = high + exp_of_negative(high_doubles(x) - most);
    }
    return seen.largest + std::log(sum(low + high));
}

void most_likely(const float* logits, int n, int count, int32_t* ids) {
    if (count == 0) return;
    std::fill(ids, ids + count, 0);
    int found = 0;
    float border = NEVER;  // of the last of `count`: who is no larger comes too late, for ids ascend
    for (int i = 0; i < n; i += LANES) {
        uint32_t lanes = lanes_at_least(load_up_to(n - i, logits + i, NEVER), set1(border));
        for (; lanes; lanes &= lanes - 1) {
            const int id = i + __builtin_ctz(lanes);
            if (id >= n || (found == count && !(logits[id] > border))) continue;
            int at = found < count ? found++ : count - 1;
            for (; at > 0 && logits[ids[at - 1]] < logits[id]; --at) ids[at] = ids[at - 1];
            ids[at] = id;
            if (found == count) border = logits[ids[count - 1]];
        }
    }
}

}  // namespace ms::MS_ISA
