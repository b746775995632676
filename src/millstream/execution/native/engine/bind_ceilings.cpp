// measure_ceilings: what this machine can do at most, now, on a number of threads.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>

#include "bindings.h"
#include "buffer.h"
#include "kernels/dispatch.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace ms {

namespace {

constexpr int TRIES = 6;
constexpr int64_t ROUNDS = 4'000'000;
constexpr int64_t FLOATS = int64_t(64) << 20;  // a thread: far more than any cache

struct Work {
    const Kernels& kernels;
    Buffer<float> values;
    int64_t operations;
};

// the best rate of some tries, in units of 1e9 a second; `run` does `amount` on each thread
double best_rate(ThreadPool& pool, Phase::Run run, Work& work, double amount) {
    double best = 0;
    for (int i = 0; i < TRIES; ++i) {
        const auto start = std::chrono::steady_clock::now();
        pool.run({{run, 0, pool.size()}}, &work);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        best = std::max(best, amount * pool.size() / seconds.count() / 1e9);
    }
    return best;
}

}  // namespace

void bind_ceilings(nb::module_& m) {
    m.def(
        "measure_ceilings",
        [](int threads) {
            Work work{*find_kernels(""), {}, 0};
            ThreadPool pool(threads);
            double read, int8, fp32;
            {
                nb::gil_scoped_release release;
                work.values.reserve(FLOATS * threads);
                read = best_rate(
                    pool,
                    [](void* context, int, int task, int) {
                        Work& w = *static_cast<Work*>(context);
                        if (w.kernels.read_floats(w.values.data() + task * FLOATS, FLOATS) > 0) w.operations = 1;
                    },
                    work, FLOATS * sizeof(float));
                const double int8_operations = double(work.kernels.int8_products(ROUNDS));
                int8 = best_rate(
                    pool, [](void* context, int, int, int) { static_cast<Work*>(context)->kernels.int8_products(ROUNDS); }, work, int8_operations);
                const double float_operations = double(work.kernels.float_products(ROUNDS));
                fp32 = best_rate(
                    pool, [](void* context, int, int, int) { static_cast<Work*>(context)->kernels.float_products(ROUNDS); }, work, float_operations);
            }
            nb::dict out;
            out["read_gb_s"] = read;
            out["int8_gops"] = int8;
            out["fp32_gflops"] = fp32;
            return out;
        },
        nb::arg("threads"));
}

}  // namespace ms
