// A perceptron with one hidden layer, in C99: the model of `kernels/mlp` without its dropout, tensor for tensor.
//
// `kernel.h` is generated from `wit/kernel.wit` when `cargo xtask kernels` builds this file. Who owns what:
// - What a function here returns lies on the heap. The generated code frees it once the agent has read it.
// - What a function here is given belongs to it: lists are freed with `.._free`, tensors are dropped one by one.

#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "sentence.h"

typedef tensor_own_tensor_t Tensor;

enum { CHANNELS, IMAGE_HEIGHT, IMAGE_WIDTH, HIDDEN, CLASSES, SETTINGS };

static const struct {
    const char *name;
    const char *help;
    uint32_t initial, min, max;
} settings[SETTINGS] = {
    [CHANNELS] = {"channels", "Channels of an image: 1 for grey, 3 for colour.", 1, 1, 64},
    [IMAGE_HEIGHT] = {"image_height", "Height of an image in pixels.", 28, 1, 4096},
    [IMAGE_WIDTH] = {"image_width", "Width of an image in pixels.", 28, 1, 4096},
    [HIDDEN] = {"hidden", "Number of hidden units.", 256, 1, 1000000},
    [CLASSES] = {"classes", "Number of classes.", 10, 2, 100000},
};

// The order in which `describe` names the parameters and `forward` receives them.
enum { FC1_WEIGHT, FC1_BIAS, FC2_WEIGHT, FC2_BIAS, PARAMETERS };

// Features of a flattened image; `describe` comes before `forward` and fixes it.
static uint32_t pixels;

// Memory that the caller of an exported function frees.
static void *copy(const void *values, size_t size) {
    return memcpy(malloc(size), values, size);
}

static kernel_string_t text(const char *words) {
    kernel_string_t copied;
    kernel_string_dup(&copied, words);
    return copied;
}

static kernel_list_u32_t shape(size_t rank, const uint32_t *dimensions) {
    return (kernel_list_u32_t){copy(dimensions, rank * sizeof *dimensions), rank};
}

// Settings

void exports_model_settings(exports_model_list_setting_info_t *result) {
    exports_model_setting_info_t infos[SETTINGS];
    for (size_t i = 0; i < SETTINGS; i++) {
        infos[i] = (exports_model_setting_info_t){
            .name = text(settings[i].name),
            .help = text(settings[i].help),
            .default_ = {.tag = EXPORTS_MODEL_SETTING_VALUE_INTEGER, .val.integer = settings[i].initial},
        };
    }
    *result = (exports_model_list_setting_info_t){copy(infos, sizeof infos), SETTINGS};
}

// A sentence for the job's author, as kernels in Rust have it.
static kernel_string_t out_of_range(size_t index, int64_t value) {
    char sentence[128];
    char *end = sentence;
    end = append_text(end, "setting `");
    end = append_text(end, settings[index].name);
    end = append_text(end, "` is ");
    end = append_integer(end, value);
    end = append_text(end, ", but must be in ");
    end = append_integer(end, settings[index].min);
    end = append_text(end, "..=");
    end = append_integer(end, settings[index].max);
    *end = 0;
    return text(sentence);
}

// The defaults, overridden by what the job gives. The agent has checked names and kinds; only the kernel knows whether a
// value is in range.
static bool choose(const exports_model_list_setting_t *given, uint32_t chosen[SETTINGS], kernel_string_t *error) {
    for (size_t i = 0; i < SETTINGS; i++) {
        chosen[i] = settings[i].initial;
        for (size_t j = 0; j < given->len; j++) {
            kernel_string_t name = given->ptr[j].name;
            if (name.len != strlen(settings[i].name) || memcmp(name.ptr, settings[i].name, name.len) != 0) continue;
            int64_t value = given->ptr[j].value.val.integer;
            if (value < settings[i].min || value > settings[i].max) {
                *error = out_of_range(i, value);
                return false;
            }
            chosen[i] = (uint32_t)value;
        }
    }
    return true;
}

// Description

// A layer's weight or bias, drawn as PyTorch does: uniform within `1 / sqrt(inputs)`.
static exports_model_parameter_t parameter(const char *name, kernel_list_u32_t shape, uint32_t inputs) {
    return (exports_model_parameter_t){
        .name = text(name),
        .shape = shape,
        .initializer = {.tag = EXPORTS_MODEL_INITIALIZER_UNIFORM, .val.uniform = 1 / __builtin_sqrtf((float)inputs)},
        .decay = true,
    };
}

bool exports_model_describe(
    exports_model_list_setting_t *given, exports_model_description_t *result, kernel_string_t *error
) {
    uint32_t chosen[SETTINGS];
    bool valid = choose(given, chosen, error);
    exports_model_list_setting_free(given);
    if (!valid) return false;

    uint32_t hidden = chosen[HIDDEN], classes = chosen[CLASSES];
    pixels = chosen[CHANNELS] * chosen[IMAGE_HEIGHT] * chosen[IMAGE_WIDTH]; // at most 2^30
    exports_model_parameter_t parameters[PARAMETERS] = {
        [FC1_WEIGHT] = parameter("fc1.weight", shape(2, (uint32_t[]){hidden, pixels}), pixels),
        [FC1_BIAS] = parameter("fc1.bias", shape(1, &hidden), pixels),
        [FC2_WEIGHT] = parameter("fc2.weight", shape(2, (uint32_t[]){classes, hidden}), hidden),
        [FC2_BIAS] = parameter("fc2.bias", shape(1, &classes), hidden),
    };
    // The first three settings are the shape of an image.
    exports_model_tensor_spec_t image = {text("image"), TENSOR_DTYPE_F32, shape(3, &chosen[CHANNELS])};
    kernel_string_t correct = text("correct");
    *result = (exports_model_description_t){
        .parameters = {copy(parameters, sizeof parameters), PARAMETERS},
        .inputs = {copy(&image, sizeof image), 1},
        .target = {.name = text("label"), .dtype = TENSOR_DTYPE_I32}, // one number: no dimension
        .metrics = {copy(&correct, sizeof correct), 1},
    };
    return true;
}

// Computation

static tensor_borrow_tensor_t lend(Tensor tensor) {
    return tensor_borrow_tensor(tensor);
}

static void drop(Tensor tensor) {
    tensor_tensor_drop_own(tensor);
}

static void drop_all(exports_model_list_own_tensor_t *tensors) {
    for (size_t i = 0; i < tensors->len; i++) drop(tensors->ptr[i]);
    exports_model_list_own_tensor_free(tensors);
}

static exports_model_list_own_tensor_t only(Tensor tensor) {
    return (exports_model_list_own_tensor_t){copy(&tensor, sizeof tensor), 1};
}

static Tensor reshape(Tensor x, size_t rank, uint32_t *dimensions) {
    return tensor_method_tensor_reshape(lend(x), &(kernel_list_u32_t){dimensions, rank});
}

static Tensor linear(Tensor x, Tensor weight, Tensor bias) {
    tensor_borrow_tensor_t lent = lend(bias);
    return tensor_method_tensor_linear(lend(x), lend(weight), &lent);
}

// Size of a tensor's first dimension.
static uint32_t samples_of(Tensor x) {
    kernel_list_u32_t shape;
    tensor_method_tensor_shape(lend(x), &shape);
    uint32_t samples = shape.ptr[0];
    kernel_list_u32_free(&shape);
    return samples;
}

// How many samples have their largest logit at their label, `[1]`.
static Tensor count_correct(Tensor logits, Tensor labels, uint32_t samples) {
    Tensor largest = tensor_method_tensor_argmax(lend(logits), -1); // [batch, 1]
    Tensor classes = reshape(largest, 1, &samples);                 // [batch]
    Tensor equal = tensor_method_tensor_equal(lend(classes), lend(labels));
    Tensor count = tensor_method_tensor_sum(lend(equal), &(kernel_list_s32_t){NULL, 0});
    drop(largest);
    drop(classes);
    drop(equal);
    return count;
}

bool exports_model_forward(exports_model_batch_t *batch, exports_model_output_t *result, kernel_string_t *error) {
    (void)error; // the agent has counted the tensors, and one of another shape traps where it is used
    Tensor images = batch->inputs.ptr[0];
    const Tensor *parameters = batch->parameters.ptr;
    uint32_t samples = samples_of(images);

    Tensor flat = reshape(images, 2, (uint32_t[]){samples, pixels});
    Tensor sums = linear(flat, parameters[FC1_WEIGHT], parameters[FC1_BIAS]); // [batch, hidden]
    Tensor hidden = tensor_method_tensor_relu(lend(sums));
    Tensor logits = linear(hidden, parameters[FC2_WEIGHT], parameters[FC2_BIAS]); // [batch, classes]

    *result = (exports_model_output_t){.outputs = only(logits)};
    if (batch->targets.is_some) { // a pass that only predicts has neither loss nor metrics
        Tensor labels = batch->targets.val;
        result->loss.is_some = true;
        result->loss.val = tensor_method_tensor_cross_entropy(lend(logits), lend(labels));
        result->metrics = only(count_correct(logits, labels, samples));
        drop(labels);
    }
    drop(flat);
    drop(sums);
    drop(hidden);
    drop_all(&batch->inputs);
    drop_all(&batch->parameters);
    drop_all(&batch->buffers);
    return true;
}
