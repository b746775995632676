// Model: a decoder of the Llama family over packed weights and paged keys and values; one call of `forward` is one step of the scheduler.
//
// What differs between families (biases, norms of queries and keys, norms after a block, windows, scales) is a weight or a number that is
// present or absent. Called from one thread; owns no fact about any request.
#pragma once

#include <cstdint>
#include <algorithm>
#include <vector>

#include "buffer.h"
#include "kernels/kernels.h"
#include "thread_pool.h"

namespace ms {

struct ModelConfig {
    int vocab_size, hidden_size, num_layers, num_heads, num_kv_heads, head_dim, ffn_size;
    float rms_eps;
    Activation activation;
    float attention_scale, attention_softcap, embedding_scale, logit_softcap;  // a cap of 0: none
    std::vector<int> windows;             // one a layer: tokens it sees, 0 for all
    std::vector<double> frequencies;      // [head_dim / 2], radians a position
    std::vector<double> local_frequencies;// of layers with a window; empty: the same
    float rotary_factor, local_rotary_factor;  // multiply cosine and sine
};

struct Layer {
    Matrix q, k, v, o, gate, up, down;
    const float *attention_norm, *ffn_norm;
    const float *q_norm = nullptr, *k_norm = nullptr;                           // or null
    const float *post_attention_norm = nullptr, *post_ffn_norm = nullptr;       // or null
};

struct Weights {
    Matrix embedding, head;
    const float* final_norm;
    std::vector<Layer> layers;
};

// One request's part of a step: `count` tokens from `position` on. `pages` is its block table, up to its last token.
struct Row {
    int count;
    int position;
    std::vector<int32_t> pages;
    int num_outputs;  // of its last tokens: they get logits
    const float* embeddings = nullptr;  // [num_embedded, hidden size], in place of those of its first tokens
    int num_embedded = 0;
    int kept_state = -1;  // the place among the step's `kept_states` where its last state is to be; -1: nowhere
};

class Model {
  public:
    // `weights` point into memory that outlives the model.
    Model(ModelConfig config, Weights weights, KVType kv_type, int num_pages, int page_size, int num_threads, const Kernels& kernels);

    // Runs one step. `tokens` of all rows, one row after another. Afterwards `logits()` holds the outputs of all rows in order,
    // `is_finite()[i]` says of row i's last hidden state whether it is finite, and `kept_states()`, [kept, hidden size], has those that
    // were to be kept, after the final norm.
    void forward(const int32_t* tokens, const std::vector<Row>& rows);
    float* logits() { return logits_.data(); }
    int num_outputs() const { return num_outputs_; }
    int logits_stride() const { return logits_stride_; }
    float* kept_states() { return kept_states_.data(); }
    int num_kept() const { return num_kept_; }
    const std::vector<uint8_t>& is_finite() const { return is_finite_; }
    const std::vector<Best>& best() const { return best_; }

    // What is to be known of output `output` of the last step so that log probabilities can be told: the logarithm of its sum of
    // exponentials, into `log_sum`, and the ids of its `top` largest, into `top_ids`.
    struct Look {
        int output, top;
        double* log_sum;
        int32_t* top_ids;
    };
    void summarize(const std::vector<Look>& looks);

    // The next token of each, from the last step's logits.
    std::vector<int32_t> draw(const std::vector<Draw>& draws);

    void copy_page(int from, int to);
    // Zero what is not finite in a page, after a row that made NaN or infinity: whoever gets the page next must not meet it.
    void heal_page(int page);
    // NaN into the first keys of a page, for tests.
    void poison_page(int page);

    const ModelConfig& config() const { return config_; }
    const Kernels& kernels() const { return k_; }
    ThreadPool& pool() { return pool_; }

  private:
    static constexpr int GATE_TOKENS = 32;  // tokens whose gates are held at once

    // one task of attention: some queries of one row and key-value head
    struct AttendTask {
        int row;
        int kv_head;
        int first, count;           // tokens of the row
        int part_begin, part_end;
        int parts_at;               // first slot in parts_ of a split query; -1: the task looks at all of its context and merges
    };
    // how rows attend in layers with the same window
    struct AttendPlan {
        int window;
        std::vector<AttendTask> tasks;
    };
    struct Scratch {  // of one thread
        Buffer<float> normed, gate, up, parts, draw;
    };
    struct Blocks { int begin, end; };
    struct Split { int token, parts_at, num_parts; };  // a query token whose context several tasks looked at

    void reserve(int num_tokens, int num_outputs);
    void plan_attention(const std::vector<Row>& rows);
    AttendPlan plan_window(const std::vector<Row>& rows, int window, std::vector<Split>& splits, int& num_parts) const;
    void plan_phases();
    int num_tasks(const Matrix& w) const;  // that a product is cut into
    int blocks_per_task(const Matrix& w) const;
    Blocks blocks_of(const Matrix& w, int task) const;
    // the first partition that a query at `position` sees any of
    static int first_part(int window, int position) { return window ? std::max(0, position - window + 1) / PARTITION : 0; }
    template <void (Model::*Do)(int, int, int)>
    static void task(void* self, int layer, int number, int thread) { (static_cast<Model*>(self)->*Do)(layer, number, thread); }

    // phases, in the order of a layer
    void embed(int, int task, int thread);
    void norm_attention(int layer, int task, int thread);
    void project_qkv(int layer, int task, int thread);
    void rotate_and_store(int layer, int task, int thread);
    void attend(int layer, int task, int thread);
    void gather_attention(int layer, int task, int thread);
    void project_output(int layer, int task, int thread);
    void norm_ffn(int layer, int task, int thread);
    void feed_gate(int layer, int task, int thread);
    void gather_gated(int layer, int task, int thread);
    void feed_down(int layer, int task, int thread);
    void norm_outputs(int, int task, int thread);
    void project_logits(int, int task, int thread);
    void pick_best(int, int task, int thread);

    const float* norm(int token, bool has_delta, const float* delta_weight, const float* weight, int thread);
    void multiply(const Matrix& w, const QuantizedRows& x, int num_tokens, int task, float* out, int stride);
    size_t kv_bytes_per_page() const;
    KVLayer kv(int layer) const;
    const AttendPlan& attend_plan(int layer) const { return plans_[plan_of_layer_[layer]]; }

    ModelConfig config_;
    Weights weights_;
    KVType kv_type_;
    int num_pages_, page_size_;
    const Kernels& k_;
    ThreadPool pool_;
    PageMemory kv_memory_;

    // sizes, padded so that whole registers and whole groups can be written
    int hidden_stride_, qkv_stride_, attended_stride_, ffn_stride_, logits_stride_;

    // one step
    const int32_t* tokens_ = nullptr;
    const std::vector<Row>* rows_ = nullptr;
    int num_tokens_ = 0, num_outputs_ = 0, num_kept_ = 0;
    std::vector<int> row_of_token_, position_of_token_, first_token_;
    std::vector<int> output_tokens_;      // the token of each row's last position and of every output, see plan
    std::vector<AttendPlan> plans_;
    std::vector<int> plan_of_layer_;
    std::vector<std::vector<Split>> splits_;  // one list a plan
    std::vector<Phase> phases_;
    std::vector<Scratch> scratch_;
    std::vector<uint8_t> is_finite_;
    std::vector<Best> best_;

    Buffer<float> states_, delta_, qkv_, attended_, gated_, cos_sin_, local_cos_sin_, logits_, kept_states_;
    Buffer<float> part_max_, part_sum_, part_out_;
    QuantizedBuffer x_, attended_q_, ffn_q_, outputs_q_;
};

}  // namespace ms
