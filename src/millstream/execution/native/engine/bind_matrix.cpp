// Packing, and the matrix kernels one by one, over numpy arrays. The loader packs with these; multiply, quantize and unpack_row are here
// for tests and benchmarks: the executor calls the kernels from C++.
//
// Every size is checked against the arrays, so nothing that Python passes reads or writes outside of them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "arrays.h"
#include "bindings.h"
#include "pack.h"

namespace nb = nanobind;

namespace ms {

namespace {

using Bytes = Array<uint8_t, 1>;
using ConstBytes = Array<const uint8_t, 1>;

template <class Value, size_t count>
Value named(const std::pair<const char*, Value> (&names)[count], const std::string& name) {
    for (const auto& [known, value] : names) {
        if (name == known) return value;
    }
    throw std::invalid_argument("unknown name `" + name + "`");
}

Stored stored_named(const std::string& name) {
    static constexpr std::pair<const char*, Stored> names[] = {
        {"Q4_0", Stored::q4_0}, {"Q4_1", Stored::q4_1}, {"Q8_0", Stored::q8_0}, {"Q4_K", Stored::q4_k}, {"Q6_K", Stored::q6_k}};
    return named(names, name);
}

size_t packed_bytes_of(const std::string& format, int rows, int inputs) {
    require(rows > 0 && inputs > 0, "a matrix has rows and inputs");
    return packed_bytes(format_named(format), rows, inputs);
}

void check_range(int begin, int end, int count, const char* what) { require(0 <= begin && begin <= end && end <= count, what); }

void check_packed(Format format, int rows, int inputs, int block_begin, int block_end, size_t bytes) {
    check_range(block_begin, block_end, padded_rows(rows) / BLOCK_ROWS, "the blocks are not all of this matrix");
    require(bytes == packed_bytes(format, rows, inputs), "the packed array has another size than packed_bytes");
}

void check_order(const Array<const int32_t, 1>& order, int rows) {
    require(order.shape(0) == size_t(rows), "order has another length than the matrix has rows");
    const int32_t* begin = order.data();
    require(std::all_of(begin, begin + rows, [rows](int32_t row) { return 0 <= row && row < rows; }), "order names a row that does not exist");
}

void pack_gguf(const std::string& type, ConstBytes stored, int rows, int inputs, std::optional<Array<const int32_t, 1>> order, int block_begin,
               int block_end, Bytes out) {
    const Stored kind = stored_named(type);
    require(rows > 0 && inputs > 0 && inputs % stored_block_inputs(kind) == 0, "the inputs are not whole stored blocks");
    require(stored.size() == size_t(rows) * stored_row_bytes(kind, inputs), "the stored array is not rows times inputs");
    check_packed(packed_format(kind), rows, inputs, block_begin, block_end, out.size());
    if (order) check_order(*order, rows);
    const int32_t* const from = order ? order->data() : nullptr;
    bool is_packed;
    {
        nb::gil_scoped_release released;
        is_packed = pack_stored(kind, stored.data(), rows, inputs, from, block_begin, block_end, out.data());
    }
    require(is_packed, "a scale is not finite");
}

void pack_float_rows(Array<const float, 2> values, int block_begin, int block_end, Bytes out) {
    const int rows = static_cast<int>(values.shape(0)), inputs = static_cast<int>(values.shape(1));
    require(rows > 0 && inputs > 0, "a matrix has rows and inputs");
    check_packed(Format::q8, rows, inputs, block_begin, block_end, out.size());
    bool is_packed;
    {
        nb::gil_scoped_release released;
        is_packed = pack_floats(values.data(), rows, inputs, block_begin, block_end, out.data());
    }
    require(is_packed, "a weight is not finite, or too large for 8 bits with an fp16 scale");
}

Matrix matrix_of(const std::string& format, const ConstBytes& data, int rows, int inputs) {
    const Format kind = format_named(format);
    require(rows > 0 && inputs > 0 && rows % BLOCK_ROWS == 0 && padded_inputs(kind, inputs) == inputs, "rows or inputs are not padded");
    require(data.size() == packed_bytes(kind, rows, inputs), "the packed array has another size than packed_bytes");
    return {kind, rows, inputs / GROUP, data.data(), nullptr};
}

// (q, scale, sum)
using TermArrays = std::tuple<Array<int8_t, 2>, Array<float, 2>, Array<int32_t, 2>>;
// (first, second, scaled_sum, flags)
using RowsArrays = std::tuple<TermArrays, TermArrays, Array<float, 2>, Array<uint64_t, 2>>;

QuantizedRows rows_of(const RowsArrays& arrays) {
    const auto& [first, second, scaled_sum, flags] = arrays;
    const size_t tokens = std::get<0>(first).shape(0), inputs = std::get<0>(first).shape(1), num_groups = inputs / GROUP;
    require(inputs % GROUP == 0, "activations are not whole groups");
    const auto is = [](const auto& array, size_t rows, size_t columns) { return array.shape(0) == rows && array.shape(1) == columns; };
    const auto term_of = [&](const TermArrays& term) -> Term {
        const auto& [q, scale, sum] = term;
        require(is(q, tokens, inputs), "the terms have other tokens or inputs");
        require(is(scale, tokens, num_groups) && is(sum, tokens, num_groups), "scales and sums are not one a group");
        return {q.data(), scale.data(), sum.data()};
    };
    require(is(scaled_sum, tokens, num_groups), "scales and sums are not one a group");
    require(is(flags, flag_words(static_cast<int>(num_groups)), tokens), "flags are not a word for each 64 groups");
    return {static_cast<int>(tokens), static_cast<int>(num_groups), term_of(first), term_of(second), scaled_sum.data(), flags.data()};
}

void multiply(const std::string& isa, const std::string& format, ConstBytes data, int rows, int inputs, std::optional<Array<const float, 1>> bias,
              int block_begin, int block_end, const RowsArrays& arrays, int token_begin, int token_end, Array<float, 2> out) {
    const Kernels& kernels = kernels_named(isa);
    Matrix w = matrix_of(format, data, rows, inputs);
    if (bias) {
        require(bias->shape(0) == size_t(rows), "bias has another length than the matrix has rows");
        w.bias = bias->data();
    }
    const QuantizedRows x = rows_of(arrays);
    require(x.num_groups == w.num_groups, "activations and matrix have other inputs");
    check_range(block_begin, block_end, rows / BLOCK_ROWS, "the blocks are not all of this matrix");
    check_range(token_begin, token_end, x.num_tokens, "the tokens are not all of these activations");
    require(out.shape(0) >= size_t(token_end - token_begin) && out.shape(1) >= size_t(block_end - block_begin) * BLOCK_ROWS, "out is too small");
    nb::gil_scoped_release released;
    kernels.multiply(w, block_begin, block_end, x, token_begin, token_end, out.data(), static_cast<int>(out.shape(1)));
}

void quantize(const std::string& isa, Array<const float, 1> values, const RowsArrays& arrays, int token) {
    const Kernels& kernels = kernels_named(isa);
    const QuantizedRows x = rows_of(arrays);
    require(values.size() == size_t(x.num_groups) * GROUP, "the values are not a row");
    check_range(token, token + 1, x.num_tokens, "the token is not one of these activations");
    kernels.quantize(values.data(), x, token);
}

void unpack_row(const std::string& isa, const std::string& format, ConstBytes data, int rows, int inputs, int row, Array<float, 1> out) {
    const Kernels& kernels = kernels_named(isa);
    const Matrix w = matrix_of(format, data, rows, inputs);
    check_range(row, row + 1, rows, "the row is not one of this matrix");
    require(out.shape(0) == size_t(inputs), "out has another length than the matrix has inputs");
    kernels.unpack_row(w, row, out.data());
}

}  // namespace

Format format_named(const std::string& name) {
    static constexpr std::pair<const char*, Format> names[] = {
        {"q4", Format::q4}, {"q4_min", Format::q4_min}, {"q8", Format::q8}, {"q4_k", Format::q4_k}, {"q6_k", Format::q6_k}};
    return named(names, name);
}

void bind_matrix(nb::module_& m) {
    m.def("packed_bytes", packed_bytes_of, nb::arg("format"), nb::arg("rows"), nb::arg("inputs"),
          "Bytes of a packed matrix; rows are padded to 16, inputs to 32 (256 for K-quants).");
    m.def("pack_gguf", pack_gguf, nb::arg("type"), nb::arg("stored"), nb::arg("rows"), nb::arg("inputs"), nb::arg("order").none(),
          nb::arg("block_begin"), nb::arg("block_end"), nb::arg("out"),
          "Pack blocks of 16 rows from a GGUF tensor's bytes; packed row i is stored row order[i].");
    m.def("pack_floats", pack_float_rows, nb::arg("values"), nb::arg("block_begin"), nb::arg("block_end"), nb::arg("out"),
          "Pack blocks of 16 rows of floats in 8 bits (format q8). ValueError where a weight is not finite.");
    m.def("multiply", multiply, nb::arg("isa"), nb::arg("format"), nb::arg("data"), nb::arg("rows"), nb::arg("inputs"), nb::arg("bias").none(),
          nb::arg("block_begin"), nb::arg("block_end"), nb::arg("x"), nb::arg("token_begin"), nb::arg("token_end"), nb::arg("out"),
          "out[t, r] of the tokens and blocks given, as Kernels::multiply; `isa` is \"avx512\", \"avx2\" or \"\" for the best. "
          "x is (first, second, scaled_sum, flags), a term (q, scale, sum), as QuantizedRows.");
    m.def("quantize", quantize, nb::arg("isa"), nb::arg("values"), nb::arg("x"), nb::arg("token"),
          "Quantise values as row `token` of x, as Kernels::quantize.");
    m.def("unpack_row", unpack_row, nb::arg("isa"), nb::arg("format"), nb::arg("data"), nb::arg("rows"), nb::arg("inputs"), nb::arg("row"),
          nb::arg("out"), "Row `row` of a packed matrix as floats.");
}

}  // namespace ms
