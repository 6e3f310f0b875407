// cuBLAS, cuBLASLt, cuSOLVER and NVRTC without a GPU. A call that computes stands for its kernels and is recorded as one
// launch on its handle's stream; build.py writes those that are not spelt out here. All of them pass the handle first.
//
// No header of these libraries is needed: their handles and enumerations are pointers and integers to a caller.
#include "nullgpu.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
struct Handle { void* stream = nullptr; int mode = 0; };
enum { BF16 = 14, F64 = 1, MATH_TF32 = 3, COMPUTE_TF32 = 77 };

int product(void* handle, const char* type, long m, long n, long k, long batch) {
    char text[160];
    snprintf(text, sizeof text, "GEMM %s m=%ld n=%ld k=%ld b=%ld", type, m, n, k, batch);
    return nullgpu_launch(text, 1, 1, 1, 1, 0, ((Handle*)handle)->stream) ? 13 : 0;  // 13: execution failed
}
const char* float32_name(void* handle) { return ((Handle*)handle)->mode == MATH_TF32 ? "tf32" : "f32"; }
const char* type_name(int type) { return type == BF16 ? "bf16" : type == F64 ? "f64" : "f32"; }
}  // namespace

extern "C" {
int nullgpu_handle_launch(void* handle, const char* name) {
    return nullgpu_launch(name, 1, 1, 1, 1, 0, ((Handle*)handle)->stream) ? 13 : 0;
}

#ifdef CUBLAS
int cublasCreate_v2(void** handle) { *handle = new Handle; return 0; }
int cublasDestroy_v2(void*) { return 0; }
int cublasSetStream_v2(void* handle, void* stream) { ((Handle*)handle)->stream = stream; return 0; }
int cublasSetWorkspace_v2(void*, void*, size_t) { return 0; }
int cublasGetMathMode(void*, int* mode) { *mode = 0; return 0; }
int cublasSetMathMode(void* handle, int mode) { ((Handle*)handle)->mode = mode; return 0; }
int cublasGetPointerMode_v2(void*, int* mode) { *mode = 0; return 0; }
int cublasSetPointerMode_v2(void*, int) { return 0; }
int cublasSgemm_v2(void* h, int, int, int m, int n, int k, const void*, const void*, int, const void*, int, const void*, void*, int) {
    return product(h, float32_name(h), m, n, k, 1);
}
int cublasDgemm_v2(void* h, int, int, int m, int n, int k, const void*, const void*, int, const void*, int, const void*, void*, int) {
    return product(h, "f64", m, n, k, 1);
}
int cublasGemmEx(void* h, int, int, int m, int n, int k, const void*, const void*, int, int, const void*, int, int, const void*, void*,
                 int type, int, int, int) {
    return product(h, type_name(type), m, n, k, 1);
}
int cublasSgemmStridedBatched(void* h, int, int, int m, int n, int k, const void*, const void*, int, long long, const void*, int, long long,
                              const void*, void*, int, long long, int batch) {
    return product(h, float32_name(h), m, n, k, batch);
}
int cublasDgemmStridedBatched(void* h, int, int, int m, int n, int k, const void*, const void*, int, long long, const void*, int, long long,
                              const void*, void*, int, long long, int batch) {
    return product(h, "f64", m, n, k, batch);
}
int cublasGemmStridedBatchedEx(void* h, int, int, int m, int n, int k, const void*, const void*, int, int, long long, const void*, int, int,
                               long long, const void*, void*, int type, int, long long, int batch, int, int) {
    return product(h, type_name(type), m, n, k, batch);
}
#endif

#ifdef CUBLASLT
struct Layout { int type; long rows, columns; int batch; };
int cublasLtGetVersion() { return 130100; }
int cublasLtMatrixLayoutCreate(void** l, int type, uint64_t rows, uint64_t columns, int64_t) {
    *l = new Layout{type, (long)rows, (long)columns, 1};
    return 0;
}
int cublasLtMatrixLayoutSetAttribute(void* l, int attribute, const void* value, size_t) {
    if (attribute == 5) ((Layout*)l)->batch = *(const int*)value;  // CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT
    return 0;
}
int cublasLtMatrixLayoutDestroy(void* l) { delete (Layout*)l; return 0; }
int cublasLtMatmulDescCreate(void** d, int compute, int) { *d = calloc(1, 256); *(int*)*d = compute; return 0; }
int cublasLtMatmulDescSetAttribute(void*, int, const void*, size_t) { return 0; }
int cublasLtMatmulDescDestroy(void* d) { free(d); return 0; }
int cublasLtMatmulPreferenceCreate(void** p) { *p = calloc(1, 256); return 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return 0; }
int cublasLtMatmulPreferenceDestroy(void* p) { free(p); return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results, int* found) {
    memset(results, 0, 64 + 8 + 4);  // algorithm, workspace, status: one that needs no workspace
    *found = 1;
    return 0;
}
int cublasLtMatmul(void*, void* description, const void*, const void*, void* a, const void*, void*, const void*, const void*, void*, void*, void* d,
                   const void*, void*, size_t, void* stream) {
    Layout *out = (Layout*)d, *left = (Layout*)a;
    Handle here{stream, *(int*)description == COMPUTE_TF32 ? MATH_TF32 : 0};
    const char* type = strcmp(type_name(out->type), "f32") ? type_name(out->type) : float32_name(&here);
    return product(&here, type, out->rows, out->columns, left->rows * left->columns / (out->rows ? out->rows : 1), out->batch);
}
#endif

#ifdef CUSOLVER
int cusolverDnCreate(void** handle) { *handle = new Handle; return 0; }
int cusolverDnDestroy(void*) { return 0; }
int cusolverDnSetStream(void* handle, void* stream) { ((Handle*)handle)->stream = stream; return 0; }
int cusolverDnCreateParams(void** p) { *p = calloc(1, 64); return 0; }
int cusolverDnDestroyParams(void* p) { free(p); return 0; }
int cusolverDnSgetrf_bufferSize(void*, int, int, const void*, int, int* n) { *n = 256; return 0; }
int cusolverDnDgetrf_bufferSize(void*, int, int, const void*, int, int* n) { *n = 256; return 0; }
int cusolverDnSpotrf_bufferSize(void*, int, int, const void*, int, int* n) { *n = 256; return 0; }
int cusolverDnDpotrf_bufferSize(void*, int, int, const void*, int, int* n) { *n = 256; return 0; }
#endif

#ifdef NVRTC
// torch writes some special functions as text and compiles them when they are first used; nothing is compiled here.
int nvrtcVersion(int* major, int* minor) { *major = 13, *minor = 0; return 0; }
int nvrtcGetNumSupportedArchs(int* n) { *n = 1; return 0; }
int nvrtcGetSupportedArchs(int* archs) { *archs = nullgpu_arch(); return 0; }
int nvrtcCreateProgram(void** p, const char*, const char*, int, const char* const*, const char* const*) { *p = calloc(1, 512); return 0; }
int nvrtcAddNameExpression(void* p, const char* name) { snprintf((char*)p, 512, "%s", name); return 0; }
int nvrtcGetLoweredName(void* p, const char*, const char** name) { *name = (const char*)p; return 0; }
int nvrtcCompileProgram(void*, int, const char* const*) { return 0; }
int nvrtcGetCUBINSize(void*, size_t* n) { *n = 5; return 0; }
int nvrtcGetCUBIN(void*, char* text) { memcpy(text, "\177ELF", 5); return 0; }
int nvrtcGetPTXSize(void*, size_t* n) { *n = 5; return 0; }
int nvrtcGetPTX(void*, char* text) { memcpy(text, "\177ELF", 5); return 0; }
int nvrtcDestroyProgram(void** p) { free(*p); return 0; }
const char* nvrtcGetErrorString(int) { return "an error of the null GPU"; }
#endif
}
