// A trial of the thread pool for its tests: phases whose tasks check that all of the phase before is done.
#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>

#include "bindings.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace ms {

namespace {

struct Trial {
    int num_phases, num_tasks, work;
    std::unique_ptr<std::atomic<int>[]> runs;  // [phase][task]: how often each ran
    std::unique_ptr<std::atomic<int>[]> done;  // [phase]
    std::atomic<int> too_early{0};
    std::atomic<long> sink{0};

    static void task(void* context, int phase, int number, int) {
        Trial& trial = *static_cast<Trial*>(context);
        if (phase > 0 && trial.done[phase - 1].load() != trial.num_tasks) trial.too_early.fetch_add(1);
        long sum = 0;
        for (int i = 0; i < trial.work * (number % 3 + 1); ++i) sum += i ^ number;
        trial.sink.fetch_add(sum, std::memory_order_relaxed);
        trial.runs[phase * trial.num_tasks + number].fetch_add(1);
        trial.done[phase].fetch_add(1);
    }
};

}  // namespace

void bind_thread_pool(nb::module_& m) {
    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(nb::init<int>(), nb::arg("threads"))
        // runs `num_phases` of `num_tasks` tasks, each about `work` additions; returns (tasks that ran not exactly once, tasks that ran
        // before the phase before was done)
        .def(
            "try_out",
            [](ThreadPool& pool, int num_phases, int num_tasks, int work) {
                Trial trial{num_phases, num_tasks, work, std::make_unique<std::atomic<int>[]>(size_t(num_phases) * num_tasks),
                            std::make_unique<std::atomic<int>[]>(num_phases)};
                std::vector<Phase> phases;
                for (int phase = 0; phase < num_phases; ++phase) phases.push_back({Trial::task, phase, num_tasks});
                {
                    nb::gil_scoped_release release;
                    pool.run(phases, &trial);
                }
                int wrong = 0;
                for (int i = 0; i < num_phases * num_tasks; ++i) wrong += trial.runs[i].load() != 1;
                return nb::make_tuple(wrong, trial.too_early.load());
            },
            nb::arg("num_phases"), nb::arg("num_tasks"), nb::arg("work"));
}

}  // namespace ms
