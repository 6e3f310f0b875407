// libnvidia-ml without a GPU. NULLGPU_NVML chooses what the driver is like: "no-energy" has no energy counter, "wraps" one
// that starts again from zero, "container" hides the process's number, "shared" shows a neighbour, "lost" refuses to start.
#include "nullgpu.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };
bool is(const char* mode) { const char* text = getenv("NULLGPU_NVML"); return text && std::string(text) == mode; }
const size_t CONTEXT = 500 << 20;  // what a CUDA context itself takes
}  // namespace

extern "C" {
struct Process { unsigned pid; unsigned long long bytes; unsigned instance, compute; };

int nvmlInit_v2() { return is("lost") ? DRIVER_NOT_LOADED : OK; }
int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
int nvmlShutdown() { return OK; }
const char* nvmlErrorString(int code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* text, unsigned n) { snprintf(text, n, "580.00"); return OK; }
int nvmlDeviceGetCount_v2(unsigned* n) { *n = nullgpu_device_count(); return OK; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {  // sixteen times the device's number, as libcudart says
    unsigned number;
    if (sscanf(uuid, "GPU-%2x", &number) != 1) return NOT_FOUND;
    *device = (void*)(size_t)(number + 1);
    return OK;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) { *device = (void*)1; return OK; }
int nvmlDeviceGetName(void*, char* text, unsigned n) { snprintf(text, n, "%s", nullgpu_name()); return OK; }
int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* mj) {
    static unsigned long long now = 5'000'000;
    *mj = now;
    now = is("wraps") ? 7 : now + 250'000;  // a quarter of a kilojoule a look
    return is("no-energy") ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* n, Process* found) {
    unsigned have = is("shared") ? 2 : 1;
    if (*n < have) { *n = have; return INSUFFICIENT_SIZE; }
    *n = have;
    size_t bytes = CONTEXT + nullgpu_used((int)((size_t)device - 1));
    found[0] = {is("container") ? 1u : (unsigned)getpid(), bytes, 0xffffffff, 0xffffffff};
    if (have == 2) found[1] = {2, 1 << 30, 0xffffffff, 0xffffffff};
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* n, Process* found) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, n, found);
}
// torch looks these up when memory runs out, to say who else uses it
int nvmlSystemGetCudaDriverVersion_v2(int* version) { *version = nullgpu_driver_version(); return OK; }
int nvmlDeviceGetNvLinkRemoteDeviceType() { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2() { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV() { return NOT_SUPPORTED; }
int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) { *mhz = kind == 2 ? 2619 : 1980; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) { *reasons = 0; return OK; }
}
