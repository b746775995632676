// Memory of a step: aligned, grown on demand, zero where nothing was written.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/layout.h"

namespace ms {

template <typename T>
class Buffer {
  public:
    Buffer() = default;
    ~Buffer() { std::free(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr, other.size_ = 0; }

    // Make room for `size` elements. What was there is lost and zeroed where it has to grow.
    void reserve(size_t size) {
        if (size <= size_) return;
        std::free(data_);
        data_ = nullptr;
        size_ = 0;
        size_t bytes = (size * sizeof(T) + 127) / 64 * 64;
        data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
        if (!data_) throw std::bad_alloc();
        std::memset(data_, 0, bytes);
        size_ = size;
    }
    T* data() { return data_; }
    const T* data() const { return data_; }

  private:
    T* data_ = nullptr;
    size_t size_ = 0;
};

// Storage of QuantizedRows.
class QuantizedBuffer {
  public:
    void reserve(int tokens, int num_groups) {
        size_t groups = size_t(tokens) * num_groups;
        q_.reserve(groups * GROUP);
        scale_.reserve(groups);
        scaled_sum_.reserve(groups);
        sum_.reserve(groups);
        rows_ = {num_groups, q_.data(), scale_.data(), scaled_sum_.data(), sum_.data()};
    }
    const QuantizedRows& rows() const { return rows_; }

  private:
    Buffer<int8_t> q_;
    Buffer<float> scale_, scaled_sum_;
    Buffer<int32_t> sum_;
    QuantizedRows rows_{};
};

// Zeroed memory that the kernel hands out as it is touched.
class PageMemory {
  public:
    explicit PageMemory(size_t bytes) : bytes_(bytes ? bytes : 1) {
        void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<uint8_t*>(memory);
    }
    ~PageMemory() { munmap(data_, bytes_); }
    PageMemory(const PageMemory&) = delete;
    PageMemory& operator=(const PageMemory&) = delete;
    uint8_t* data() const { return data_; }

  private:
    size_t bytes_;
    uint8_t* data_;
};

}  // namespace ms
