// Sampling for Python: rows of logits to token ids.
#include <memory>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "kernels/dispatch.h"

namespace nb = nanobind;

namespace ms {
namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const Kernels& kernels_named(const std::string& isa) {
    const Kernels* kernels = find_kernels(isa.c_str());
    if (!kernels) throw std::invalid_argument("no kernels for " + (isa.empty() ? std::string("this machine") : isa));
    return *kernels;
}

template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::unique_ptr<T[]> values, size_t size) {
    T* data = values.release();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return {data, {size}, owner};
}

nb::object draw_rows(Logits logits, Column<double> temperature, Column<int32_t> top_k, Column<double> top_p, Column<double> min_p,
                     Column<uint64_t> seed, Column<uint64_t> index, const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    const size_t rows = logits.shape(0);
    for (size_t size : {temperature.size(), top_k.size(), top_p.size(), min_p.size(), seed.size(), index.size()})
        if (size != rows) throw std::invalid_argument("one parameter of each kind for every row");
    const int vocab = static_cast<int>(logits.shape(1));
    auto ids = std::make_unique<int32_t[]>(rows);
    {
        nb::gil_scoped_release released;
        std::unique_ptr<uint8_t[]> scratch(new uint8_t[draw_scratch_bytes(vocab)]);
        for (size_t i = 0; i < rows; ++i) {
            Draw row = {logits.data() + i * vocab, temperature.data()[i], top_k.data()[i], top_p.data()[i], min_p.data()[i], seed.data()[i], index.data()[i]};
            ids[i] = kernels.draw(row, vocab, scratch.get());
        }
    }
    return nb::cast(to_numpy(std::move(ids), rows));
}

nb::object argmax_rows(Logits logits, const std::string& isa) {
    const Kernels& kernels = kernels_named(isa);
    const size_t rows = logits.shape(0), vocab = logits.shape(1);
    auto ids = std::make_unique<int32_t[]>(rows);
    auto largest = std::make_unique<float[]>(rows);
    auto finite = std::make_unique<bool[]>(rows);
    {
        nb::gil_scoped_release released;
        for (size_t i = 0; i < rows; ++i) {
            Best best = kernels.argmax(logits.data() + i * vocab, static_cast<int>(vocab));
            ids[i] = best.token;
            largest[i] = best.logit;
            finite[i] = best.is_finite;
        }
    }
    return nb::make_tuple(to_numpy(std::move(ids), rows), to_numpy(std::move(largest), rows), to_numpy(std::move(finite), rows));
}

}  // namespace

void bind_sampling(nb::module_& m) {
    using namespace nb::literals;
    m.def("draw_rows", &draw_rows, "logits"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "seed"_a, "index"_a, "isa"_a = "",
          "Draw a token of each row of float32 logits [rows, vocab], as millstream.execution.sampling does. A temperature of 0 takes the largest;\n"
          "-inf may not be drawn. Returns int32 ids; -1 where none may be drawn, or where a logit is NaN or +inf.");
    m.def("argmax_rows", &argmax_rows, "logits"_a, "isa"_a = "",
          "Return (ids, logits, finite) of the largest logit of each row, the lowest id among equals; finite: no logit of the row is NaN or infinite.");
}

}  // namespace ms
