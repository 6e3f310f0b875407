// cuDNN without a GPU, as far as recurrent layers need it. A layer's pass is one recorded launch; cuDNN itself would launch
// several kernels for it.
#include "nullgpu.h"

#include <cstdlib>
#include <cstring>

namespace {
struct Handle { void* stream = nullptr; };
struct Tensor { int type, n, size[8], stride[8]; };
struct Rnn { int cell, inputs, hidden, layers, type; size_t bytes; };  // of one number
struct Data { int length, batch, width; };
enum { FLOAT32 = 0, LSTM = 2, GRU = 3, MAJOR = 9, MINOR = 20 };

int gates(const Rnn* rnn) { return rnn->cell == LSTM ? 4 : rnn->cell == GRU ? 3 : 1; }
size_t numbers(const Rnn* rnn, int layer) {  // of one layer: two matrices and two biases for each gate
    size_t in = layer ? rnn->hidden : rnn->inputs;
    return gates(rnn) * (size_t)rnn->hidden * (in + rnn->hidden + 2);
}
int launch(void* handle, const char* name) { return nullgpu_launch(name, 1, 1, 1, 1, 0, ((Handle*)handle)->stream) ? 8 : 0; }
}  // namespace

extern "C" {
size_t cudnnGetVersion() { return MAJOR * 10000 + MINOR * 100; }
size_t cudnnGetCudartVersion() { return 13000; }
int cudnnGetProperty(int which, int* v) { *v = which == 0 ? MAJOR : which == 1 ? MINOR : 0; return 0; }
const char* cudnnGetErrorString(int) { return "an error of the null GPU: see its trace"; }
void cudnnGetLastErrorString(char* text, size_t n) { strncpy(text, "an error of the null GPU", n); }
int cudnnCreate(void** h) { *h = new Handle; return 0; }
int cudnnSetStream(void* h, void* stream) { ((Handle*)h)->stream = stream; return 0; }
int cudnnGetStream(void* h, void** stream) { *stream = ((Handle*)h)->stream; return 0; }

int cudnnCreateTensorDescriptor(void** d) { *d = calloc(1, sizeof(Tensor)); return 0; }
int cudnnDestroyTensorDescriptor(void* d) { free(d); return 0; }
int cudnnSetTensorNdDescriptor(void* d, int type, int n, const int* size, const int* stride) {
    Tensor* t = (Tensor*)d;
    t->type = type, t->n = n;
    memcpy(t->size, size, n * sizeof(int)), memcpy(t->stride, stride, n * sizeof(int));
    return 0;
}
int cudnnGetTensorNdDescriptor(void* d, int, int* type, int* n, int* size, int* stride) {
    Tensor* t = (Tensor*)d;
    *type = t->type, *n = t->n;
    memcpy(size, t->size, t->n * sizeof(int)), memcpy(stride, t->stride, t->n * sizeof(int));
    return 0;
}
int cudnnCreateDropoutDescriptor(void** d) { *d = calloc(1, 64); return 0; }
int cudnnDestroyDropoutDescriptor(void* d) { free(d); return 0; }
int cudnnDropoutGetStatesSize(void*, size_t* bytes) { *bytes = 4096; return 0; }
int cudnnSetDropoutDescriptor(void*, void* h, float, void* states, size_t, unsigned long long) {
    return states ? launch(h, "cudnn dropout states") : 0;
}
int cudnnRestoreDropoutDescriptor(void*, void*, float, void*, size_t, unsigned long long) { return 0; }

int cudnnCreateRNNDescriptor(void** d) { *d = calloc(1, sizeof(Rnn)); return 0; }
int cudnnDestroyRNNDescriptor(void* d) { free(d); return 0; }
int cudnnSetRNNDescriptor_v8(void* d, int, int cell, int, int direction, int, int type, int, int, int inputs, int hidden, int projection,
                             int layers, void*, unsigned) {
    if (direction || projection != hidden) nullgpu_violation("not written: a recurrent layer of both directions, or with a projection");
    *(Rnn*)d = {cell, inputs, hidden, layers, type, type == FLOAT32 ? 4u : 2u};
    return 0;
}
int cudnnCreateRNNDataDescriptor(void** d) { *d = calloc(1, sizeof(Data)); return 0; }
int cudnnDestroyRNNDataDescriptor(void* d) { free(d); return 0; }
int cudnnSetRNNDataDescriptor(void* d, int, int, int length, int batch, int width, const int*, void*) {
    *(Data*)d = {length, batch, width};
    return 0;
}
int cudnnGetRNNWeightSpaceSize(void*, void* d, size_t* bytes) {
    *bytes = 0;
    for (int layer = 0; layer < ((Rnn*)d)->layers; layer++) *bytes += ((Rnn*)d)->bytes * numbers((Rnn*)d, layer);
    return 0;
}
// In a layer: the matrices that read the input, gate by gate, those that read the state, and the biases in the same order.
int cudnnGetRNNWeightParams(void*, void* d, int layer, size_t, const void* weights, int which, void* matrix, void** matrix_at, void* bias,
                            void** bias_at) {
    Rnn* rnn = (Rnn*)d;
    size_t hidden = rnn->hidden, in = layer ? hidden : rnn->inputs, n = gates(rnn), offset = 0;
    for (int below = 0; below < layer; below++) offset += numbers(rnn, below);
    bool state = which >= (int)n;
    size_t gate = which % n, columns = state ? hidden : in;
    size_t at = offset + (state ? n * hidden * in : 0) + gate * hidden * columns;
    size_t bias_place = offset + n * hidden * (in + hidden) + which * hidden;
    int shape[3] = {1, (int)hidden, (int)columns}, strides[3] = {(int)(hidden * columns), (int)columns, 1};
    int thin[3] = {1, (int)hidden, 1}, thin_strides[3] = {(int)hidden, 1, 1};
    if (matrix) cudnnSetTensorNdDescriptor(matrix, rnn->type, 3, shape, strides), *matrix_at = (char*)weights + rnn->bytes * at;
    if (bias) cudnnSetTensorNdDescriptor(bias, rnn->type, 3, thin, thin_strides), *bias_at = (char*)weights + rnn->bytes * bias_place;
    return 0;
}
int cudnnGetRNNTempSpaceSizes(void*, void* d, int, void* x, size_t* work, size_t* reserve) {
    Data* data = (Data*)x;
    size_t states = (size_t)data->length * data->batch * ((Rnn*)d)->hidden * ((Rnn*)d)->bytes;
    if (work) *work = states * gates((Rnn*)d);
    if (reserve) *reserve = states * (gates((Rnn*)d) + 2);
    return 0;
}
int cudnnRNNForward(void* h, ...) { return launch(h, "cudnn RNN forward"); }
int cudnnRNNBackwardData_v8(void* h, ...) { return launch(h, "cudnn RNN backward data"); }
int cudnnRNNBackwardWeights_v8(void* h, ...) { return launch(h, "cudnn RNN backward weights"); }
}
