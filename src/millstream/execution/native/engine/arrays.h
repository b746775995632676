// numpy arrays in and out of the bindings, and the kernels by their name.
#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "kernels/dispatch.h"

namespace ms {

template <typename T, int dimensions>
using Array = nanobind::ndarray<T, nanobind::ndim<dimensions>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T>
using Column = Array<T, 1>;

// an array of a shape that owns its memory; its elements are at `*data`
template <typename T>
nanobind::ndarray<nanobind::numpy, T> new_array(std::initializer_list<size_t> shape, T** data) {
    size_t size = 1;
    for (size_t length : shape) size *= length;
    *data = new T[size];
    nanobind::capsule owner(*data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return {*data, shape, owner};
}

// what callers got wrong: a ValueError
inline void require(bool is_so, const char* what) {
    if (!is_so) throw std::invalid_argument(what);
}

// a bit for each id, the lowest first; on x86-64 the halves of a word lie in the order of their ids
inline Mask mask_of(const uint32_t* words, size_t count) { return {reinterpret_cast<const uint16_t*>(words), int(count) * 2}; }

// "": the best of this machine's
inline const Kernels& kernels_named(const std::string& isa) {
    const Kernels* kernels = find_kernels(isa.c_str());
    if (!kernels) throw std::invalid_argument("no instruction set `" + isa + "` on this machine");
    return *kernels;
}

}  // namespace ms
