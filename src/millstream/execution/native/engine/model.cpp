// A model's memory, and the planning of a step: which phases, and who attends to what. What the phases do is in phases.cpp.
#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ms {

constexpr int TASKS_PER_THREAD = 6;    // of a phase, where there is enough to do: what a slow thread leaves, others take
constexpr int ATTEND_TOKENS = 16;      // tokens of a prompt whose queries attend in one task

static int padded(int size) { return (size + GROUP - 1) / GROUP * GROUP; }
static int divided_up(int a, int b) { return (a + b - 1) / b; }

Model::Model(ModelConfig config, Weights weights, KVType kv_type, int num_pages, int page_size, int num_threads, const Kernels& kernels)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      kv_type_(kv_type),
      num_pages_(num_pages),
      page_size_(page_size),
      k_(kernels),
      pool_(num_threads),
      kv_memory_(size_t(num_pages) * config_.num_layers * kv_bytes_per_page()) {
    hidden_stride_ = padded(config_.hidden_size);
    qkv_stride_ = weights_.layers[0].q.rows + weights_.layers[0].k.rows + weights_.layers[0].v.rows;
    attended_stride_ = padded(config_.num_heads * config_.head_dim);
    ffn_stride_ = padded(config_.ffn_size);
    logits_stride_ = weights_.head.rows;
    scratch_.resize(pool_.size());
    for (Scratch& scratch : scratch_) {
        scratch.normed.reserve(hidden_stride_);  // zero behind the hidden size, for that is part of a group
        scratch.gate.reserve(GATE_TOKENS * GROUP);
        scratch.up.reserve(GATE_TOKENS * GROUP);
    }
    for (int layer = 0; layer < config_.num_layers; ++layer) {  // layers with the same window share a plan
        int window = config_.windows[layer], plan = 0;
        while (plan < int(plans_.size()) && plans_[plan].window != window) ++plan;
        if (plan == int(plans_.size())) plans_.push_back({window, {}});
        plan_of_layer_.push_back(plan);
    }
    splits_.resize(plans_.size());
}

KVLayer Model::kv(int layer) const {
    KVLayer kv{kv_type_, config_.num_kv_heads, config_.head_dim, page_size_, nullptr};
    kv.data = kv_memory_.data() + size_t(layer) * num_pages_ * kv.page_bytes();
    return kv;
}

size_t Model::kv_bytes_per_page() const {
    return KVLayer{kv_type_, config_.num_kv_heads, config_.head_dim, page_size_, nullptr}.page_bytes();
}

std::vector<int32_t> Model::draw(const std::vector<Draw>& draws) {
    struct Work {
        Model& model;
        const std::vector<Draw>& draws;
        std::vector<int32_t> tokens;
    } work{*this, draws, std::vector<int32_t>(draws.size())};
    auto run = [](void* context, int, int number, int thread) {
        Work& work = *static_cast<Work*>(context);
        const int vocab = work.model.config_.vocab_size;
        Buffer<float>& scratch = work.model.scratch_[thread].draw;
        scratch.reserve(draw_scratch_bytes(vocab) / sizeof(float));
        work.tokens[number] = work.model.k_.draw(work.draws[number], vocab, scratch.data());
    };
    pool_.run({{run, 0, int(draws.size())}}, &work);
    return work.tokens;
}

void Model::summarize(const std::vector<Look>& looks) {
    struct Work {
        Model& model;
        const std::vector<Look>& looks;
    } work{*this, looks};
    auto run = [](void* context, int, int number, int) {
        const Work& work = *static_cast<Work*>(context);
        const Look& look = work.looks[number];
        const float* logits = work.model.logits() + size_t(look.output) * work.model.logits_stride_;
        const int vocab = work.model.config_.vocab_size;
        *look.log_sum = work.model.k_.log_sum_exp(logits, vocab);
        work.model.k_.most_likely(logits, vocab, look.top, look.top_ids);
    };
    pool_.run({{run, 0, int(looks.size())}}, &work);
}

void Model::copy_page(int from, int to) {
    for (int layer = 0; layer < config_.num_layers; ++layer) {
        KVLayer store = kv(layer);
        std::memcpy(store.data + size_t(to) * store.page_bytes(), store.data + size_t(from) * store.page_bytes(), store.page_bytes());
    }
}

// the bits of an exponent of all ones: NaN or infinity
static void heal_halves(uint16_t* values, size_t count) {
    for (size_t i = 0; i < count; ++i)
        if ((values[i] & 0x7C00) == 0x7C00) values[i] = 0;
}

static void heal_floats(float* values, size_t count) {
    for (size_t i = 0; i < count; ++i)
        if (!std::isfinite(values[i])) values[i] = 0;
}

void Model::heal_page(int page) {
    const size_t elements = size_t(2) * config_.head_dim * 16;  // of one head in one subpage, keys and values
    for (int layer = 0; layer < config_.num_layers; ++layer) {
        KVLayer store = kv(layer);
        for (int part = 0; part < page_size_ / 16 * config_.num_kv_heads; ++part) {
            uint8_t* at = store.data + size_t(page) * store.page_bytes() + size_t(part) * store.head_bytes();
            if (kv_type_ == KVType::f16) heal_halves(reinterpret_cast<uint16_t*>(at), elements);
            if (kv_type_ == KVType::f32) heal_floats(reinterpret_cast<float*>(at), elements);
            if (kv_type_ == KVType::i8) heal_floats(reinterpret_cast<float*>(at + elements), 2 * 16);  // only scales can be
        }
    }
}

void Model::poison_page(int page) {
    KVLayer store = kv(0);
    uint8_t* at = store.data + size_t(page) * store.page_bytes();
    if (kv_type_ == KVType::i8) at += store.keys_bytes() * 2;
    std::memset(at, 0xFF, 16);  // all ones are NaN in every float format
}

// ---- planning a step

void Model::forward(const int32_t* tokens, const std::vector<Row>& rows) {
    tokens_ = tokens;
    rows_ = &rows;
    row_of_token_.clear();
    position_of_token_.clear();
    first_token_.clear();
    output_tokens_.clear();
    num_outputs_ = num_kept_ = 0;
    for (int row = 0; row < int(rows.size()); ++row) {
        num_kept_ += rows[row].kept_state >= 0;
        first_token_.push_back(int(row_of_token_.size()));
        for (int i = 0; i < rows[row].count; ++i) {
            row_of_token_.push_back(row);
            position_of_token_.push_back(rows[row].position + i);
        }
        num_outputs_ += rows[row].num_outputs;
    }
    num_tokens_ = int(row_of_token_.size());
    reserve(num_tokens_, num_outputs_);
    // logits first, then the last tokens of rows that want none, which are only looked at
    for (int row = 0; row < int(rows.size()); ++row)
        for (int i = rows[row].num_outputs; i > 0; --i) output_tokens_.push_back(first_token_[row] + rows[row].count - i);
    for (int row = 0; row < int(rows.size()); ++row)
        if (rows[row].num_outputs == 0) output_tokens_.push_back(first_token_[row] + rows[row].count - 1);
    is_finite_.assign(rows.size(), 1);
    best_.resize(num_outputs_);
    plan_attention(rows);
    plan_phases();
    pool_.run(phases_, this);
}

void Model::reserve(int num_tokens, int num_outputs) {
    states_.reserve(size_t(num_tokens) * hidden_stride_);
    delta_.reserve(size_t(num_tokens) * hidden_stride_);
    qkv_.reserve(size_t(num_tokens) * qkv_stride_);
    attended_.reserve(size_t(num_tokens) * attended_stride_);
    cos_sin_.reserve(size_t(num_tokens) * config_.head_dim);
    if (!config_.local_frequencies.empty()) local_cos_sin_.reserve(size_t(num_tokens) * config_.head_dim);
    x_.reserve(num_tokens, hidden_stride_ / GROUP);
    attended_q_.reserve(num_tokens, attended_stride_ / GROUP);
    gated_.reserve(size_t(num_tokens) * ffn_stride_);
    ffn_q_.reserve(num_tokens, ffn_stride_ / GROUP);
    outputs_q_.reserve(num_outputs, hidden_stride_ / GROUP);
    logits_.reserve(size_t(num_outputs) * logits_stride_);
    kept_states_.reserve(size_t(num_kept_) * config_.hidden_size);
}

void Model::plan_attention(const std::vector<Row>& rows) {
    int most_parts = 0;
    for (size_t plan = 0; plan < plans_.size(); ++plan) {
        int num_parts = 0;
        plans_[plan] = plan_window(rows, plans_[plan].window, splits_[plan], num_parts);
        most_parts = std::max(most_parts, num_parts);
    }
    part_max_.reserve(most_parts);
    part_sum_.reserve(most_parts);
    part_out_.reserve(size_t(most_parts) * config_.head_dim);
}

Model::AttendPlan Model::plan_window(const std::vector<Row>& rows, int window, std::vector<Split>& splits, int& num_slots) const {
    AttendPlan plan{window, {}};
    splits.clear();
    num_slots = 0;
    // one task a partition only where whole contexts would leave threads without work
    bool split = int(rows.size()) * config_.num_kv_heads < TASKS_PER_THREAD * pool_.size();
    for (int row = 0; row < int(rows.size()); ++row) {
        for (int first = 0; first < rows[row].count; first += ATTEND_TOKENS) {
            int count = std::min(ATTEND_TOKENS, rows[row].count - first);
            int position = rows[row].position + first;
            int part_begin = first_part(window, position);
            int part_end = (position + count - 1) / PARTITION + 1;
            int parts = part_end - part_begin;
            bool cut = split && count == 1 && parts > 1;
            if (cut) {
                splits.push_back({first_token_[row] + first, num_slots, parts});
                for (int head = 0; head < config_.num_kv_heads; ++head)
                    for (int part = part_begin; part < part_end; ++part)
                        plan.tasks.push_back({row, head, first, count, part, part + 1, num_slots + part - part_begin});
                num_slots += config_.num_heads * parts;
            } else {
                for (int head = 0; head < config_.num_kv_heads; ++head)
                    plan.tasks.push_back({row, head, first, count, part_begin, part_end, -1});
            }
        }
    }
    return plan;
}

int Model::blocks_per_task(const Matrix& w) const {
    return divided_up(w.num_blocks(), TASKS_PER_THREAD * pool_.size() * 2) * 2;  // kernels take blocks two by two
}

int Model::num_tasks(const Matrix& w) const { return divided_up(w.num_blocks(), blocks_per_task(w)); }

Model::Blocks Model::blocks_of(const Matrix& w, int task) const {
    const int begin = task * blocks_per_task(w);
    return {begin, std::min(w.num_blocks(), begin + blocks_per_task(w))};
}

void Model::plan_phases() {
    phases_.clear();
    const int tokens = num_tokens_;
    auto add = [this](Phase::Run run, int layer, int count) { phases_.push_back({run, layer, count}); };
    add(task<&Model::embed>, 0, tokens);
    for (int layer = 0; layer < config_.num_layers; ++layer) {
        const Layer& w = weights_.layers[layer];
        add(task<&Model::norm_attention>, layer, tokens);
        add(task<&Model::project_qkv>, layer,
            num_tasks(w.q) + num_tasks(w.k) + num_tasks(w.v));
        add(task<&Model::rotate_and_store>, layer, tokens);
        add(task<&Model::attend>, layer, int(attend_plan(layer).tasks.size()));
        add(task<&Model::gather_attention>, layer, tokens);
        add(task<&Model::project_output>, layer, num_tasks(w.o));
        add(task<&Model::norm_ffn>, layer, tokens);
        add(task<&Model::feed_gate>, layer, num_tasks(w.gate));
        add(task<&Model::gather_gated>, layer, tokens);
        add(task<&Model::feed_down>, layer, num_tasks(w.down));
    }
    add(task<&Model::norm_outputs>, 0, int(output_tokens_.size()));
    if (num_outputs_ > 0) {
        add(task<&Model::project_logits>, 0, num_tasks(weights_.head));
        add(task<&Model::pick_best>, 0, num_outputs_);
    }
}

}  // namespace ms
