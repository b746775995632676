// Attention, norms and activations one kernel at a time, over numpy arrays: for tests. The model calls the kernels itself.
#include <optional>
#include <string>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "bindings.h"

namespace nb = nanobind;

namespace ms {
namespace {

using Floats = Column<float>;
using ConstFloats = Column<const float>;
using Ints = Column<const int32_t>;

const float* pointer(const std::optional<ConstFloats>& array) { return array ? array->data() : nullptr; }

Activation activation_named(const std::string& name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu_tanh") return Activation::gelu_tanh;
    require(name == "gelu", "an activation is silu, gelu_tanh or gelu");
    return Activation::gelu;
}

KVType kv_type_named(const std::string& name) {
    if (name == "fp16") return KVType::f16;
    if (name == "fp32") return KVType::f32;
    require(name == "int8", "a type of keys and values is fp16, fp32 or int8");
    return KVType::i8;
}

// Paged keys and values of one layer, with memory of its own.
class KVPages {
public:
    KVPages(const std::string& type, int num_pages, int page_size, int num_kv_heads, int head_dim)
        : layer_{kv_type_named(type), num_kv_heads, head_dim, page_size, nullptr}, num_pages_(num_pages) {
        require(head_dim > 0 && head_dim % 16 == 0 && page_size > 0 && page_size % 16 == 0, "head_dim and page_size are multiples of 16");
        memory_.resize(num_pages * layer_.page_bytes());
        layer_.data = memory_.data();
    }

    const KVLayer& layer() const { return layer_; }
    std::vector<uint8_t>& memory() { return memory_; }

    void store(const std::string& isa, Ints pages, int position, int head, ConstFloats key, ConstFloats value) {
        require_pages(pages, position);
        require(head >= 0 && head < layer_.num_kv_heads, "no such head");
        require(int(key.size()) == layer_.head_dim && int(value.size()) == layer_.head_dim, "a key and a value are head_dim floats");
        kernels_named(isa).store_kv(layer_, pages.data(), position, head, key.data(), value.data());
    }

    void require_pages(Ints pages, int last_position) const {
        require(last_position >= 0 && last_position < int(pages.size()) * layer_.page_size, "pages do not reach the position");
        for (size_t i = 0; i < pages.size(); ++i) require(pages.data()[i] < num_pages_, "no such page");  // a negative one must not be read
    }

private:
    KVLayer layer_;
    int num_pages_;
    std::vector<uint8_t> memory_;
};

nb::tuple attend(const std::string& isa, const KVPages& kv, Array<const float, 3> q, Ints pages, int position, int kv_head, int window, float scale,
                 float softcap, int part_begin, int part_end) {
    const int head_dim = kv.layer().head_dim, count = int(q.shape(0)), group = int(q.shape(1));
    require(count > 0 && group > 0 && int(q.shape(2)) == head_dim, "queries are [tokens, heads of the group, head_dim]");
    require(kv_head >= 0 && kv_head < kv.layer().num_kv_heads && part_begin <= part_end, "no such head, or parts that end before they begin");
    kv.require_pages(pages, position + count - 1);
    const size_t parts = part_end - part_begin;
    float *part_max, *part_sum, *part_out;
    auto max = new_array<float>({q.shape(0), q.shape(1), parts}, &part_max);
    auto sum = new_array<float>({q.shape(0), q.shape(1), parts}, &part_sum);
    auto out = new_array<float>({q.shape(0), q.shape(1), parts, size_t(head_dim)}, &part_out);
    Attend work = {q.data(), group * head_dim, group, count, position, pages.data(), kv_head, window, scale, softcap, part_begin, part_end,
                   int(parts), part_max, part_sum, part_out};
    const Kernels& kernels = kernels_named(isa);
    {
        nb::gil_scoped_release released;
        kernels.attend(kv.layer(), work);
    }
    return nb::make_tuple(max, sum, out);
}

nb::object merge(const std::string& isa, ConstFloats part_max, ConstFloats part_sum, Array<const float, 2> part_out) {
    const size_t parts = part_out.shape(0), head_dim = part_out.shape(1);
    require(part_max.size() == parts && part_sum.size() == parts && parts > 0 && head_dim % 16 == 0, "one largest score and one sum a part");
    float* merged;
    auto out = new_array<float>({head_dim}, &merged);
    kernels_named(isa).merge(part_max.data(), part_sum.data(), part_out.data(), int(parts), int(head_dim), merged);
    return nb::cast(out);
}

nb::object add_norm(const std::string& isa, Floats states, std::optional<ConstFloats> delta, std::optional<ConstFloats> delta_weight, ConstFloats weight,
                    float eps) {
    const size_t n = states.size();
    require(weight.size() == n && (!delta || delta->size() == n) && (!delta_weight || delta_weight->size() == n), "arrays of one length");
    float* normed;
    auto out = new_array<float>({n}, &normed);
    kernels_named(isa).add_norm(states.data(), pointer(delta), pointer(delta_weight), weight.data(), eps, int(n), normed);
    return nb::cast(out);
}

nb::object gate(const std::string& isa, const std::string& activation, ConstFloats gate, ConstFloats up) {
    require(gate.size() == up.size(), "arrays of one length");
    float* gated;
    auto out = new_array<float>({gate.size()}, &gated);
    kernels_named(isa).gate(activation_named(activation), gate.data(), up.data(), int(gate.size()), gated);
    return nb::cast(out);
}

void norm_rotate(const std::string& isa, Floats head, std::optional<ConstFloats> weight, float eps, ConstFloats cos_sin) {
    require(head.size() % 16 == 0 && cos_sin.size() == head.size() && (!weight || weight->size() == head.size()), "arrays of one length, a multiple of 16");
    kernels_named(isa).norm_rotate(head.data(), pointer(weight), eps, cos_sin.data(), int(head.size()));
}

}  // namespace

void bind_attention(nb::module_& m) {
    using namespace nb::literals;
    nb::class_<KVPages>(m, "KVPages", "Paged keys and values of one layer.")
        .def(nb::init<const std::string&, int, int, int, int>(), "type"_a, "num_pages"_a, "page_size"_a, "num_kv_heads"_a, "head_dim"_a)
        .def_prop_ro("memory", [](KVPages& self) {
            return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(self.memory().data(), {self.memory().size()}, nb::find(self));
        })
        .def("store", &KVPages::store, "isa"_a, "pages"_a, "position"_a, "head"_a, "key"_a, "value"_a);
    m.def("attend", &attend, "isa"_a, "kv"_a, "q"_a, "pages"_a, "position"_a, "kv_head"_a, "window"_a, "scale"_a, "softcap"_a, "part_begin"_a,
          "part_end"_a, "Return (max, sum, out) of every token, head and partition.");
    m.def("merge", &merge, "isa"_a, "part_max"_a, "part_sum"_a, "part_out"_a);
    m.def("add_norm", &add_norm, "isa"_a, "states"_a, "delta"_a.none(), "delta_weight"_a.none(), "weight"_a, "eps"_a);
    m.def("gate", &gate, "isa"_a, "activation"_a, "gate"_a, "up"_a);
    m.def("norm_rotate", &norm_rotate, "isa"_a, "head"_a, "weight"_a.none(), "eps"_a, "cos_sin"_a);
    m.def("scale", [](const std::string& isa, Floats values, float factor) { kernels_named(isa).scale(values.data(), factor, int(values.size())); });
    m.def("softcap", [](const std::string& isa, Floats values, float cap) { kernels_named(isa).softcap(values.data(), cap, int(values.size())); });
    m.def("all_finite", [](const std::string& isa, ConstFloats values) { return kernels_named(isa).all_finite(values.data(), int(values.size())); });
}

}  // namespace ms
