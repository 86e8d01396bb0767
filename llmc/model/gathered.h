// Weights of which every process keeps a slice (gpt2/bucket_places.h), for what looks at whole
// tensors: files of the model.
#pragma once
#include "llmc/model/model_state.h"

// Elements first to first + n of a tensor of the weights as fp32 on the host, until the next such
// call; where every process keeps a slice, from all of them: then all processes call it.
inline const float* gathered_tensor_data(GPT2& model, int tensor, int64_t layer, int64_t first, int64_t n) {
    if (!model.weight_places.sharded || !trains(model.layout.config, tensor, layer))
        return tensor_data(model, tensor, layer, first, n);
    const ParameterLayout& layout = model.layout;
    const CommGroup& shards = comm.shards;
    const int64_t bucket = layout.bucket_of(tensor, layer);
    static std::vector<float> gathered;
    gathered.resize(n);
    for (int64_t done = 0, count; done < n; done += count) {
        count = std::min(CONVERTED_ELEMS, n - done);
        const int64_t begin = layout.offset_in_bucket(tensor, layer) + first + done;  // in the bucket
        const auto in_slice = [&](int64_t rank) {
            return BucketSlice{shards.processes, rank}.within(layout, bucket, begin, count);
        };
        std::vector<float> mine(count), all(count * shards.processes);
        if (const auto [low, high] = in_slice(shards.rank); low < high) {
            const float* values = tensor_data(model, tensor, layer, first + done + low, high - low);
            std::copy(values, values + high - low, mine.begin() + low);
        }
        comm_gather(shards, all.data(), mine.data(), count * (int64_t)sizeof(float), "the collection of the weights");
        for (int64_t rank = 0; rank < shards.processes; rank++) {
            const float* from = all.data() + rank * count;
            if (const auto [low, high] = in_slice(rank); low < high)
                std::copy(from + low, from + high, gathered.begin() + done + low);
        }
    }
    return gathered.data();
}
