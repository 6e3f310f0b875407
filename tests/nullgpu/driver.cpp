// libcuda without a GPU: what Triton's launcher and torch's run-time compiler call. Triton hands over real binaries, which
// ptxas has made; here they are only named and launched.
#include "nullgpu.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <string>

namespace {
struct Kernel { std::string name; int shared = 48 << 10; };
CUcontext only = (CUcontext)1;

CUresult launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s) {
    Kernel* kernel = (Kernel*)f;
    if (shared > (unsigned)kernel->shared) {
        nullgpu_violation((kernel->name + ": more shared memory than was asked for").c_str());
        return CUDA_ERROR_INVALID_VALUE;
    }
    return (CUresult)nullgpu_launch(kernel->name.c_str(), gx, gy, gz, bx * by * bz, shared, (void*)s);
}
}  // namespace

extern "C" {
CUresult cuInit(unsigned) { return (CUresult)nullgpu_init(); }
CUresult cuDriverGetVersion(int* v) { *v = nullgpu_driver_version(); return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* n) { *n = nullgpu_device_count(); return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int i) { *device = i; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* device) { return (CUresult)cudaGetDevice(device); }
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) { return (CUresult)cudaDeviceGetAttribute(v, (cudaDeviceAttr)a, d); }
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) { *flags = 0, *active = 1; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) { *c = only; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* c) { *c = only; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult code, const char** s) {
    *s = code == CUDA_ERROR_SYSTEM_NOT_READY ? "CUDA_ERROR_SYSTEM_NOT_READY" : "CUDA_ERROR";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult code, const char** s) {
    *s = code == CUDA_ERROR_INVALID_VALUE      ? "invalid argument"
         : code == CUDA_ERROR_SYSTEM_NOT_READY ? "system not yet initialized"
                                               : "an error of the null GPU: see its trace";
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    if (nullgpu_capturing()) nullgpu_violation("module loaded in capture");
    if (memcmp(image, "\177ELF", 4)) { nullgpu_violation("module that is no binary"); return CUDA_ERROR_INVALID_IMAGE; }
    *module = (CUmodule)1;
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule, const char* name) { *f = (CUfunction) new Kernel{name}; return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction) {
    *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
    if (a == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) ((Kernel*)f)->shared = v;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int threads, size_t) { *n = 2048 / threads; return CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void* out, CUpointer_attribute a, CUdeviceptr p) {
    cudaPointerAttributes found;
    cudaPointerGetAttributes(&found, (void*)p);
    if (found.type != cudaMemoryTypeDevice) return CUDA_ERROR_INVALID_VALUE;
    if (a == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *(CUdeviceptr*)out = p;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void**, void**) {
    return launch(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes, c->hStream);
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        CUstream s, void**, void**) {
    return launch(f, gx, gy, gz, bx, by, bz, shared, s);
}
}
