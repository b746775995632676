// ThreadPool: runs a step, a list of phases that follow one another, each a number of tasks that do not depend on each other.
//
// Threads take tasks one by one, so a thread that gets little of its core does little of the work; and a phase is over when its tasks are
// done, not when all threads have come to its end, so a thread that sleeps between two tasks delays nobody. Whoever waits spins for a
// while and then sleeps in the kernel, which lets the scheduler give the core to the thread that is waited for. An OpenMP runtime does
// neither: with one busy core its steps took forty times as long.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ms {

// A number that threads wait for. Spins, then sleeps.
class Signal {
  public:
    int load() const { return value_.load(std::memory_order_acquire); }
    void reset(int value) { value_.store(value, std::memory_order_relaxed); }
    // Adds and wakes those who wait for what is now reached: all sleepers look again.
    void add(int amount, bool wake);
    void wait_until(int at_least, int spins);

  private:
    std::atomic<int> value_{0};
    std::atomic<int> sleepers_{0};
};

// One phase: `run(context, layer, task, thread)` for each task from 0 to num_tasks - 1.
struct Phase {
    using Run = void (*)(void* context, int layer, int task, int thread);
    Run run;
    int layer;
    int num_tasks;
};

class ThreadPool {
  public:
    // `num_threads` - 1 threads of its own; the caller of `run` is the other one. Throws where they cannot be started.
    explicit ThreadPool(int num_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }
    // Runs the phases in order and returns when all of their tasks are done. One caller at a time. Tasks must not throw.
    void run(const std::vector<Phase>& phases, void* context);

  private:
    struct Progress;  // of one phase
    struct Job;       // one call of `run`; a thread that wakes late may still hold the job of an earlier call

    static void work(Job& job, int thread);
    void serve(int thread);
    void stop();
    std::shared_ptr<Job> take_job();

    std::vector<std::thread> workers_;
    std::mutex mutex_;              // guards job_
    std::shared_ptr<Job> job_;
    std::vector<std::shared_ptr<Job>> jobs_;  // for reuse, where nobody holds one any more
    Signal generation_;             // calls of `run` so far
    std::atomic<bool> stopping_{false};
};

}  // namespace ms
