#include "thread_pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <stdexcept>
#include <string>
#include <system_error>

namespace ms {

// Long enough for the tail of a phase, short enough that a core is not kept from the thread that is waited for: about 20 us
// (a pause is 10 to 40 ns).
constexpr int SPINS_IN_STEP = 1000;
// Between two steps of a server that is busy lie some hundred microseconds.
constexpr int SPINS_BETWEEN_STEPS = 4000;

static void futex_wait(std::atomic<int>& word, int expected) {
    syscall(SYS_futex, reinterpret_cast<int*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

static void futex_wake_all(std::atomic<int>& word) {
    syscall(SYS_futex, reinterpret_cast<int*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// also where a count of steps has gone past the largest int
static bool reached(int value, int at_least) { return static_cast<int>(static_cast<unsigned>(value) - static_cast<unsigned>(at_least)) >= 0; }

void Signal::add(int amount, bool wake) {
    // sequentially consistent, like the other side: either we see the sleeper, or it sees the new value
    value_.fetch_add(amount);
    if (wake && sleepers_.load() > 0) futex_wake_all(value_);
}

void Signal::wait_until(int at_least, int spins) {
    for (int i = 0; i < spins; ++i) {
        if (reached(load(), at_least)) return;
        _mm_pause();
    }
    sleepers_.fetch_add(1);
    for (int seen = value_.load(); !reached(seen, at_least); seen = value_.load()) futex_wait(value_, seen);
    sleepers_.fetch_sub(1);
}

struct alignas(64) ThreadPool::Progress {
    std::atomic<int> next{0};  // the first task that nobody has taken
    alignas(64) Signal done;   // tasks
};

struct ThreadPool::Job {
    std::vector<Phase> phases;
    std::unique_ptr<Progress[]> progress;
    size_t capacity = 0;
    void* context = nullptr;

    void prepare(const std::vector<Phase>& list, void* with) {
        phases = list;
        context = with;
        if (capacity < list.size()) {
            capacity = list.size();
            progress = std::make_unique<Progress[]>(capacity);
        }
        for (size_t i = 0; i < list.size(); ++i) {
            progress[i].next.store(0, std::memory_order_relaxed);
            progress[i].done.reset(0);
        }
    }
};

ThreadPool::ThreadPool(int num_threads) {
    if (num_threads < 1) throw std::invalid_argument("a thread pool needs a thread");
    try {
        for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { serve(thread); });
    } catch (const std::system_error& error) {
        stop();
        throw std::runtime_error(std::to_string(num_threads) + " threads cannot be started: " + error.code().message());
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stopping_.store(true);
    generation_.add(1, true);
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const std::vector<Phase>& phases, void* context) {
    if (phases.empty()) return;
    std::shared_ptr<Job> job = take_job();
    job->prepare(phases, context);
    {
        std::lock_guard lock(mutex_);
        job_ = job;
    }
    generation_.add(1, true);
    work(*job, 0);
    std::lock_guard lock(mutex_);
    job_.reset();  // who wakes now finds nothing to do
}

std::shared_ptr<ThreadPool::Job> ThreadPool::take_job() {
    for (std::shared_ptr<Job>& job : jobs_) {
        if (job.use_count() == 1) {
            std::atomic_thread_fence(std::memory_order_acquire);  // after the last thread that let go of it
            return job;
        }
    }
    return jobs_.emplace_back(std::make_shared<Job>());
}

void ThreadPool::work(Job& job, int thread) {
    for (size_t at = 0; at < job.phases.size(); ++at) {
        const Phase& phase = job.phases[at];
        Progress& progress = job.progress[at];
        int taken = 0;
        for (int task; (task = progress.next.fetch_add(1, std::memory_order_relaxed)) < phase.num_tasks; ++taken)
            phase.run(job.context, phase.layer, task, thread);
        if (taken > 0) progress.done.add(taken, true);
        progress.done.wait_until(phase.num_tasks, SPINS_IN_STEP);
    }
}

void ThreadPool::serve(int thread) {
    for (int seen = 0;;) {
        generation_.wait_until(seen + 1, SPINS_BETWEEN_STEPS);
        seen = generation_.load();
        if (stopping_.load()) return;
        std::shared_ptr<Job> job;
        {
            std::lock_guard lock(mutex_);
            job = job_;
        }
        if (job) work(*job, thread);
    }
}

}  // namespace ms
