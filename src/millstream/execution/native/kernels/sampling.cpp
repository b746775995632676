// Drawing a token from a row of logits, id for id as millstream.execution.sampling draws it.
//
// top_k and top_p each keep a beginning of the ids ranked by logit, so together they keep one: all that ranks no lower than a border. Weights
// and their sums are doubles, as in Python. The race over what is kept is decided in doubles as well, but only a few have to run it: a bound
// in floats says who cannot win.
#include "hash.h"
#include "parts.h"
#include "scan.h"

#include <cfloat>

namespace ms::MS_ISA {
namespace {

constexpr double NO_WEIGHT = 746;  // exp of minus this is 0 in doubles
constexpr double LOG2_E = 1.4426950408889634;

int first_at_least(const Logits& logits, float border) {
    for (int i = 0; i < logits.count; i += LANES) {
        if (!logits.allowed(i)) continue;
        uint32_t found = lanes_at_least(logits.at(i), set1(border));
        if (found) return std::min(i + __builtin_ctz(found), logits.count - 1);
    }
    return 0;
}

// One row's draw, once it is known which logit is the largest.
class Drawing {
public:
    Drawing(const Draw& row, int n, int best, float smallest, void* scratch)
        : row_(row), logits_{row.logits, row.mask, n}, n_(n), best_(best), largest_(row.logits[best]), weights_(static_cast<double*>(scratch)), search_scratch_(weights_ + n + LANES) {
        lowest_ = std::max(next_below(smallest), at_weight(-NO_WEIGHT));
    }

    int32_t run() {
        if (row_.top_k > 0 && row_.top_k < n_) border_ = search({row_.logits, nullptr, nullptr, n_, row_.mask}, row_.top_k, lowest_);
        if (row_.top_p < 1) {
            const double whole = weigh_all();
            // what weighs less than its share of the 1 - top_p that may be left out cannot be the border
            const float low = std::max(lowest_, at_weight(std::log((1 - row_.top_p) * whole / n_) - 1e-3));
            border_ = border_.or_higher(search({row_.logits, weights_, nullptr, n_, row_.mask}, row_.top_p * whole, low));
        }
        return first_to_arrive();
    }

private:
    // an unnormalised probability, by the same steps as in Python; the largest is 1
    double weight(float logit) const { return std::exp((double(logit) - largest_) / row_.temperature); }

    // a logit that weighs less than e^log_weight, if barely
    float at_weight(double log_weight) const {
        return next_below(static_cast<float>(std::max(largest_ + log_weight * row_.temperature, -double(FLT_MAX))));
    }

    Border search(Row row, double needed, float low) const { return BorderSearch(row, needed, low, largest_, search_scratch_).find(); }

    // fill weights_, with 0 for what the border leaves out; return their sum
    double weigh_all() {
        D8x total = doubles(0);
        const D8x most = doubles(largest_), temperature = doubles(row_.temperature);
        const F16x lowest = set1(std::max(border_.logit, lowest_));
        for (int i = 0; i < n_; i += LANES) {
            F16x logits = logits_.at(i);
            D8x low = doubles(0), high = doubles(0);
            if (const uint32_t kept = lanes_at_least(logits, lowest)) {
                logits = if_less(logits, lowest, set1(NEVER), logits);
                if (i + LANES > border_.id) logits = without_later_equals(logits, i, kept);
                low = exp_of_negative((low_doubles(logits) - most) / temperature);
                high = exp_of_negative((high_doubles(logits) - most) / temperature);
            }
            store(weights_ + i, low);
            store(weights_ + i + DOUBLES, high);
            total = total + (low + high);
        }
        return sum(total);
    }

    // -inf in the lanes whose logit equals the border's and whose id is higher
    F16x without_later_equals(F16x logits, int first_id, uint32_t lanes) const {
        float values[LANES];
        store(values, logits);
        for (; lanes; lanes &= lanes - 1) {
            const int lane = __builtin_ctz(lanes);
            if (!border_.keeps(values[lane], first_id + lane)) values[lane] = NEVER;
        }
        return load(values);
    }

    // Arrivals are log(u) / weight, and the largest wins (all are negative). An id can beat the arrival a only if -log(u) < -a weight. As
    // -log(u) > 1 - u, that takes log2(1 - u) < log2(-a) + log2(weight). The bits of a float, taken as a number, are a lower bound of its
    // logarithm (Mitchell 1962: they are a line between powers of two, and a logarithm lies above its chords).
    int32_t first_to_arrive() const {
        constexpr double BITS_OF_ONE = 127, HALF_RANGE = 31, SLACK = 1e-3;  // SLACK: more than what floats round
        const uint64_t key = hash_key(row_.seed, row_.index);
        const F16x steepness = set1(static_cast<float>(std::min(LOG2_E / row_.temperature, 1e30)));
        int32_t winner = best_;
        double arrival = std::log(uniform(key, best_));
        auto reach_of_largest = [&] { return set1(static_cast<float>(std::log2(-arrival) + BITS_OF_ONE + HALF_RANGE + SLACK)); };
        F16x most = reach_of_largest();
        for (int i = 0; i < n_; i += LANES) {
            if (!logits_.allowed(i)) continue;
            F16x reach = fma(logits_.at(i) - set1(largest_), steepness, most);
            U16x complement = (uniform_bits(key, i) ^ words(~0u)) >> 1;  // (1 - u) 2^31, rounded down
            F16x distance = to_floats(bits_of(to_floats(complement))) * set1(0x1p-23f);
            for (uint32_t lanes = lanes_at_least(reach, distance); lanes; lanes &= lanes - 1) {
                const int32_t id = i + __builtin_ctz(lanes);
                const double own = weight(row_.logits[id]);
                if (own == 0 || own < row_.min_p || !border_.keeps(row_.logits[id], id)) continue;
                const double own_arrival = std::log(uniform(key, id)) / own;
                if (own_arrival <= arrival) continue;
                winner = id;
                arrival = own_arrival;
                most = reach_of_largest();
            }
        }
        return winner;
    }

    const Draw& row_;
    Logits logits_;
    int n_;
    int32_t best_;
    float largest_;
    float lowest_;         // nothing that weighs anything lies at or below it
    double* weights_;      // [n + 16]
    void* search_scratch_;
    Border border_;
};

}  // namespace

Best argmax(const float* logits, int n) {
    Scan seen = scan(logits, n);
    bool is_finite = !seen.has_nan && seen.largest < INFINITY && seen.smallest > -INFINITY;
    int token = first_at_least({logits, {}, n}, seen.largest);
    return {token, logits[token], is_finite};
}

int32_t draw(const Draw& row, int n, void* scratch) {
    const Logits logits{row.logits, row.mask, n};
    Scan seen = row.mask.blocks ? scan_allowed(logits) : scan(row.logits, n);
    if (seen.has_nan || !(std::fabs(seen.largest) < INFINITY)) return -1;
    int best = first_at_least(logits, seen.largest);
    if (row.temperature <= 0 || row.top_k == 1) return best;
    return Drawing(row, n, best, seen.smallest, scratch).run();
}

}  // namespace ms::MS_ISA
