// Where a ranking of logits is cut: the beginning that top_k or top_p keeps, found without sorting the vocabulary.
#pragma once

#include "doubles.h"

#include <algorithm>
#include <cmath>

namespace ms::MS_ISA {

constexpr float NEVER = -__builtin_inff();  // the logit of what may not be drawn

// the logits from p on, `rest` in lanes past the `count` that are left
MS_INLINE F16x load_up_to(int count, const float* p, float rest) { return count >= LANES ? load(p) : first(count, load_first(count, p), set1(rest)); }
MS_INLINE float next_above(float x) { return std::nextafter(x, -NEVER); }
MS_INLINE float next_below(float x) { return std::nextafter(x, NEVER); }

// The lowest that is kept, and with it all that rank before: larger logits, and of equal ones lower ids.
struct Border {
    float logit = NEVER;
    int32_t id = INT32_MAX;

    bool keeps(float other, int32_t other_id) const { return other > logit || (other == logit && other_id <= id); }
    Border or_higher(Border other) const { return keeps(other.logit, other.id) ? other : *this; }
};

// Logits of 0, 1, 2, ..., NEVER where a mask forbids an id.
struct Logits {
    const float* values;
    Mask mask;
    int count;

    static constexpr uint32_t ALL = (1u << LANES) - 1;

    // a bit for each of the sixteen ids from i on, a multiple of sixteen, that may be drawn
    uint32_t allowed(int i) const { return !mask.blocks ? ALL : i / LANES < mask.num_blocks ? mask.blocks[i / LANES] : 0; }
    // the logits from i on
    MS_INLINE F16x at(int i) const {
        const F16x own = load_up_to(count - i, values + i, NEVER);
        return mask.blocks ? select(allowed(i), own, set1(NEVER)) : own;
    }
};

// Logits in ascending order of their ids.
struct Row {
    const float* logits;
    const double* weights;  // readable to a multiple of 16, 0 past the end; null: each weighs 1
    const int32_t* ids;     // null: 0, 1, 2, ...
    int count;
    Mask mask;              // of a row with all ids

    MS_INLINE F16x at(int i) const { return Logits{logits, mask, count}.at(i); }

    double weight(int i) const { return weights ? weights[i] : 1.0; }
    int32_t id(int i) const { return ids ? ids[i] : i; }
};

// The search for the shortest beginning of the ranking whose weights add up to `needed`. The border lies among logits within (low_, high_];
// what is above them weighs above_. A pass over these tries a few pivots at once and leaves a part; the last few are sorted.
class BorderSearch {
public:
    // `scratch` holds (count + 16) * 16 bytes. Logits at or below `low` do not count.
    BorderSearch(Row row, double needed, float low, float high, void* scratch)
        : row_(row), needed_(needed), low_(low), high_(high), weights_(static_cast<double*>(scratch)),
          logits_(reinterpret_cast<float*>(weights_ + row.count + LANES)), ids_(reinterpret_cast<int32_t*>(logits_ + row.count + LANES)) {}

    // keeps everything where all of it is less than needed
    Border find() {
        if (row_.mask.blocks && row_.count <= FEW) leave_between();  // else the loop does
        while (row_.count > FEW) {
            if (has_several_values()) try_pivots();
            leave_between();
            if (!has_several_values()) return walk(row_);
        }
        return sort_and_walk();
    }

private:
    static constexpr int FEW = 128;
    static constexpr int PIVOTS = 3;

    bool has_several_values() const { return next_above(low_) < high_; }

    void try_pivots() {
        float pivots[PIVOTS];
        D8x pivot[PIVOTS], sums[PIVOTS];
        for (int j = 0; j < PIVOTS; ++j) {
            double between = low_ + (double(high_) - low_) * (j + 1) / (PIVOTS + 1);
            pivots[j] = std::clamp(static_cast<float>(between), next_above(low_), next_below(high_));
            pivot[j] = doubles(pivots[j]);
            sums[j] = doubles(0);
        }
        for (int i = 0; i < row_.count; i += LANES) {
            F16x logits = row_.at(i);
            logits = if_less(set1(high_), logits, set1(NEVER), logits);  // above_ has them
            if (!lanes_at_least(logits, set1(pivots[0]))) continue;
            D8x low = low_doubles(logits), high = high_doubles(logits);
            D8x low_weights = row_.weights ? load(row_.weights + i) : doubles(1), high_weights = row_.weights ? load(row_.weights + i + DOUBLES) : doubles(1);
            for (int j = 0; j < PIVOTS; ++j) sums[j] = sums[j] + (if_greater(low, pivot[j], low_weights) + if_greater(high, pivot[j], high_weights));
        }
        double beyond = 0;
        for (int j = PIVOTS; j-- > 0;) {  // from the highest down to the first with enough above it
            double weight = sum(sums[j]);
            if (above_ + weight >= needed_) {
                low_ = pivots[j];
                break;
            }
            high_ = pivots[j];
            beyond = weight;
        }
        above_ += beyond;
    }

    // copy the logits within (low_, high_] to scratch, where some may lie already: what is read never lies behind what is written
    void leave_between() {
        int left = 0;
        const F16x low = set1(next_above(low_)), high = set1(high_);
        for (int i = 0; i < row_.count; i += LANES) {
            F16x logits = row_.at(i);
            logits = if_less(high, logits, set1(NEVER), logits);
            for (uint32_t lanes = lanes_at_least(logits, low); lanes; lanes &= lanes - 1, ++left) {
                const int from = i + __builtin_ctz(lanes);
                logits_[left] = row_.logits[from];
                weights_[left] = row_.weight(from);
                ids_[left] = row_.id(from);
            }
        }
        std::fill(weights_ + left, weights_ + left + LANES, 0.0);
        row_ = {logits_, weights_, ids_, left, {}};
    }

    struct Ranked {
        float logit;
        int32_t id;
        double weight;
        bool operator<(const Ranked& other) const { return logit > other.logit || (logit == other.logit && id < other.id); }
    };

    Border sort_and_walk() const {
        Ranked few[FEW];
        for (int i = 0; i < row_.count; ++i) few[i] = {row_.logits[i], row_.id(i), row_.weight(i)};
        std::sort(few, few + row_.count);
        double total = above_;
        for (int i = 0; i < row_.count; ++i)
            if ((total += few[i].weight) >= needed_) return {few[i].logit, few[i].id};
        return {};
    }

    // equal logits rank by id, and that is how they lie
    Border walk(const Row& equals) const {
        double total = above_;
        for (int i = 0; i < equals.count; ++i)
            if ((total += equals.weight(i)) >= needed_) return {equals.logits[i], equals.id(i)};
        return {};
    }

    Row row_;
    double needed_;
    double above_ = 0;
    float low_, high_;
    double* weights_;
    float* logits_;
    int32_t* ids_;
};

}  // namespace ms::MS_ISA
