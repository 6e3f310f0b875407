// What the null GPU's libraries share. All state lives in libcudart; the other libraries report to it.
#pragma once
#include <cstddef>

extern "C" {
// A kernel launch, or a library call that stands for its kernels. Returns a cudaError_t.
int nullgpu_launch(const char* name, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned shared, void* stream);
// Something that a GPU would refuse, or that a captured step must not do. Written to the trace; tests demand none.
void nullgpu_violation(const char* text);
int nullgpu_capturing();
int nullgpu_device_count();
int nullgpu_physical(int device);       // its number without CUDA_VISIBLE_DEVICES
int nullgpu_arch();                     // 90 for sm_90
const char* nullgpu_name();
size_t nullgpu_used(int physical);      // bytes that this process holds on a GPU
int nullgpu_driver_version();
int nullgpu_init();                     // what CUDA answers when it starts: a CUresult, which is the same cudaError_t
}
