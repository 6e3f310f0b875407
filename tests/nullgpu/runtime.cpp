// libcudart without a GPU: device memory is host memory and kernels do nothing, but the rules of streams, events, graph
// capture and launches are enforced as CUDA documents them, and what happens is written to a trace, one event a line:
//
//   violation TEXT          a GPU would refuse this, or a captured step must not do it
//   sync NAME               the host waited for the device
//   malloc BYTES USED GPU   device memory taken from the driver; USED is what the process then holds on that GPU
//   free BYTES USED
//   capture ID NODES STREAM FILE  a graph was captured; FILE lists its nodes: grid|block|kernel
//   replay ID USED EAGER STREAM   a graph was launched; EAGER counts launches outside graphs so far
//
// Environment: NULLGPU_LOG (folder of traces; without it violations go to stderr), NULLGPU_DEVICES, NULLGPU_MEMORY (bytes
// of each), NULLGPU_FULL_CAPTURES (the first N captures find no memory), NULLGPU_ARCH (90), NULLGPU_DRIVER (13000), NULLGPU_TRACE=1 (a C backtrace at each violation).
#include "nullgpu.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

struct Node { std::string name; dim3 grid, block; };
struct Graph { long id; std::vector<Node> nodes; };
struct Stream { int device = 0; int priority = 0; unsigned long long capture = 0; long work = 0; long joined = 0; };
struct Event { Stream* stream = nullptr; unsigned long long capture = 0; long work = 0; };
struct Capture { Graph* graph; Stream* origin; std::set<Stream*> forked; bool invalid; int mode; };
struct Block { size_t bytes; int device; };

std::recursive_mutex mutex;
std::map<const void*, std::string> kernel_names;
std::map<const void*, int> kernel_shared;  // dynamic shared memory that was asked for, above 48 KB
std::map<char*, Block> device_memory;
std::map<char*, size_t> pinned_memory;
std::map<unsigned long long, Capture> captures;
unsigned long long next_capture = 1;
long next_graph = 0, eager = 0;
std::string last_kernel;  // outside captures
std::map<int, Stream> default_streams;  // one a device
size_t used[64];                        // bytes, by device
pid_t owner = 0;                        // the process that started CUDA
thread_local cudaError_t last_error = cudaSuccess;
thread_local int capture_mode = cudaStreamCaptureModeGlobal;
thread_local int current = 0;

const unsigned SHARED_DEFAULT = 48 << 10, SHARED_MOST = 227 << 10;

#define LOCK std::lock_guard<std::recursive_mutex> lock(mutex)

long setting(const char* name, long usual) {
    const char* text = getenv(name);
    return text && *text ? strtol(text, nullptr, 10) : usual;
}
size_t total_memory() { static size_t bytes = setting("NULLGPU_MEMORY", 80l << 30); return bytes; }

// Devices as CUDA_VISIBLE_DEVICES leaves them: an unknown number ends the list, as with the real runtime.
const std::vector<int>& visible() {
    static std::vector<int> found;
    static bool read = false;
    if (read) return found;
    read = true;
    long all = setting("NULLGPU_DEVICES", 1);
    const char* text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) { for (long i = 0; i < all; i++) found.push_back(i); return found; }
    for (char* at = (char*)text; *at;) {
        char* end; long i = strtol(at, &end, 10);
        if (end == at || i < 0 || i >= all) break;
        found.push_back(i);
        at = *end == ',' ? end + 1 : end;
    }
    return found;
}

void trace(const std::string& line) {
    static int file = -1;
    static pid_t opened = 0;
    const char* folder = getenv("NULLGPU_LOG");
    if (!folder) return;
    if (opened != getpid()) {
        std::string path = std::string(folder) + "/" + std::to_string(getpid()) + ".trace";
        file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        opened = getpid();
    }
    std::string whole = line + "\n";
    if (file < 0 || write(file, whole.data(), whole.size()) != (ssize_t)whole.size()) abort();  // no trace, no test
}

cudaError_t error(cudaError_t code) { if (code) last_error = code; return code; }
void violation(const std::string& text) {
    trace("violation " + text);
    if (!getenv("NULLGPU_LOG")) fprintf(stderr, "null GPU: %s\n", text.c_str());
    if (getenv("NULLGPU_TRACE")) { void* frames[60]; backtrace_symbols_fd(frames, backtrace(frames, 60), 2); }
}
cudaError_t refuse(cudaError_t code, const std::string& text) { violation(text); return error(code); }

// A context does not survive a fork.
cudaError_t start() {
    if (!owner) owner = getpid();
    return owner == getpid() ? cudaSuccess : refuse(cudaErrorInitializationError, "CUDA used after a fork");
}
#define START if (cudaError_t code = start()) return code

Stream* as_stream(cudaStream_t stream) {
    if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread) return (Stream*)stream;
    Stream& own = default_streams[current];
    own.device = current;
    return &own;
}

// Calls that CUDA forbids to every thread while a capture in global mode is under way.
cudaError_t unsafe(const char* name) {
    if (capture_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    bool any = false;
    for (auto& [id, capture] : captures)
        if (capture.mode == cudaStreamCaptureModeGlobal) any = capture.invalid = true;
    return any ? refuse(cudaErrorStreamCaptureUnsupported, std::string("forbidden in capture: ") + name) : cudaSuccess;
}

cudaError_t wait_for(const char* name, unsigned long long capture) {
    trace(std::string("sync ") + name);
    auto found = captures.find(capture);
    if (found != captures.end()) {
        found->second.invalid = true;
        return refuse(cudaErrorStreamCaptureUnsupported, std::string("sync in capture: ") + name);
    }
    return unsafe(name);
}

std::string readable(const std::string& name) {
    int status;
    char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    std::string result = status == 0 ? text : name;
    free(text);
    return result;
}

cudaError_t launch(const std::string& name, dim3 grid, dim3 block, size_t shared, unsigned allowed, cudaStream_t where) {
    LOCK;
    START;
    Stream* stream = as_stream(where);
    unsigned long long threads = (unsigned long long)block.x * block.y * block.z;
    if (!threads || threads > 1024 || block.z > 64 || !grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff ||
        grid.y > 65535 || grid.z > 65535) {
        char shape[120];
        snprintf(shape, sizeof shape, "grid %u,%u,%u block %u,%u,%u", grid.x, grid.y, grid.z, block.x, block.y, block.z);
        return refuse(cudaErrorInvalidConfiguration, "invalid launch: " + readable(name) + " " + shape);
    }
    if (shared > allowed)
        return refuse(cudaErrorInvalidValue, "invalid launch: " + readable(name) + " wants " + std::to_string(shared) +
                                                 " bytes of shared memory and may have " + std::to_string(allowed));
    if (stream->device != current)
        return refuse(cudaErrorInvalidResourceHandle, "launched on a stream of another device: " + readable(name));
    stream->work++;
    if (stream->capture) {
        auto found = captures.find(stream->capture);
        if (found == captures.end()) return refuse(cudaErrorStreamCaptureInvalidated, "launched after its capture ended");
        found->second.graph->nodes.push_back({name, grid, block});
        return cudaSuccess;
    }
    eager++;
    if (name.compare(0, 6, "memcpy")) last_kernel = name;
    if (!captures.empty()) violation("launched outside the capture that is under way: " + readable(name));
    return cudaSuccess;
}

std::string name_of(const void* kernel) {
    auto found = kernel_names.find(kernel);
    return found == kernel_names.end() ? "unknown kernel" : found->second;
}
cudaError_t launch_kernel(const void* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    LOCK;
    auto asked = kernel_shared.find(kernel);
    unsigned allowed = asked == kernel_shared.end() ? SHARED_DEFAULT : asked->second;
    return launch(name_of(kernel), grid, block, shared, allowed, stream);
}

// The allocation that holds an address; nullptr for host memory.
const std::pair<char* const, Block>* allocation(const void* address) {
    auto found = device_memory.upper_bound((char*)address);
    if (found == device_memory.begin()) return nullptr;
    --found;
    return (char*)address < found->first + found->second.bytes ? &*found : nullptr;
}
bool pinned(const void* address) {
    auto found = pinned_memory.upper_bound((char*)address);
    if (found == pinned_memory.begin()) return false;
    --found;
    return (char*)address < found->first + found->second;
}
bool overruns(const void* address, size_t bytes) {
    auto* found = allocation(address);
    return found && (char*)address + bytes > found->first + found->second.bytes;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t where, const char* call) {
    LOCK;
    START;
    if (overruns(to, bytes) || overruns(from, bytes)) return refuse(cudaErrorInvalidValue, "copied beyond an allocation");
    bool host = !allocation(to) || !allocation(from), captured = as_stream(where)->capture;
    if (captured && host) violation("host copy in capture");
    if (!captured) memcpy(to, from, bytes);
    // nothing was compared: to the host, `all` of nothing is true and every other predicate false
    if (bytes == 1 && !allocation(to)) *(char*)to = last_kernel.find("and_kernel") != std::string::npos;
    // the host waits for a copy from or to memory that is not pinned
    if (host && !captured && !pinned(allocation(to) ? from : to)) trace(std::string("sync ") + call);
    return launch(host ? "memcpy host" : "memcpy device", dim3(1), dim3(1), 0, 0, where);
}

void write_graph(const Graph& graph, const std::string& stream) {
    const char* folder = getenv("NULLGPU_LOG");
    std::string path;
    if (folder) {
        path = std::string(folder) + "/" + std::to_string(getpid()) + "." + std::to_string(graph.id) + ".graph";
        FILE* file = fopen(path.c_str(), "w");
        if (!file) abort();
        for (auto& [name, grid, block] : graph.nodes)
            fprintf(file, "%u,%u,%u|%u,%u,%u|%s\n", grid.x, grid.y, grid.z, block.x, block.y, block.z, readable(name).c_str());
        fclose(file);
    }
    trace("capture " + std::to_string(graph.id) + " " + std::to_string(graph.nodes.size()) + " " + stream + " " + path);
}

}  // namespace

extern "C" {

int nullgpu_launch(const char* name, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned shared, void* stream) {
    return launch(name, dim3(gx, gy, gz), dim3(threads), shared, SHARED_MOST, (cudaStream_t)stream);
}
void nullgpu_violation(const char* text) { LOCK; violation(text); }
int nullgpu_capturing() { LOCK; return !captures.empty(); }
int nullgpu_device_count() { return (int)visible().size(); }
int nullgpu_physical(int device) { return visible()[device]; }
int nullgpu_arch() { return (int)setting("NULLGPU_ARCH", 90); }
const char* nullgpu_name() { return nullgpu_arch() == 70 ? "Tesla V100-SXM2-16GB" : "NVIDIA H100 80GB HBM3"; }
int nullgpu_driver_version() { return (int)setting("NULLGPU_DRIVER", 13000); }
int nullgpu_init() { return (int)setting("NULLGPU_INIT", visible().empty() ? cudaErrorNoDevice : cudaSuccess); }
size_t nullgpu_used(int physical) {
    LOCK;
    for (size_t i = 0; i < visible().size(); i++)
        if (visible()[i] == physical) return used[i];
    return 0;
}

// ---- registration of compiled kernels: only their names are kept
void** __cudaRegisterFatBinary(void*) { static int handle; return (void**)&handle; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    LOCK;
    kernel_names[kernel] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
static thread_local struct { dim3 grid, block; size_t shared; cudaStream_t stream; } pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
    pushed = {grid, block, shared, (cudaStream_t)stream};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(cudaStream_t*)stream = pushed.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) { *kernel = (cudaKernel_t)function; return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t stream) {
    return launch_kernel((const void*)kernel, grid, block, shared, stream);
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t stream) {
    return launch_kernel(kernel, grid, block, shared, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t shared, cudaStream_t stream) {
    return launch_kernel(kernel, grid, block, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* kernel, void**) {
    return launch_kernel(kernel, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024, a->numRegs = 32, a->ptxVersion = a->binaryVersion = nullgpu_arch();
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    LOCK;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > (int)SHARED_MOST) return refuse(cudaErrorInvalidValue, "too much shared memory asked for");
    kernel_shared[kernel] = value;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads, size_t, unsigned) {
    *blocks = threads > 64 ? 2048 / threads : 32;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared, 0);
}

// ---- devices
cudaError_t cudaGetDeviceCount(int* n) {
    *n = 0;
    if (nullgpu_driver_version() < 13000) return error(cudaErrorInsufficientDriver);
    if (nullgpu_init() != 0) return error((cudaError_t)nullgpu_init());
    *n = nullgpu_device_count();
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= nullgpu_device_count()) return refuse(cudaErrorInvalidDevice, "no such device");
    current = device;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *v = nullgpu_arch() / 10; break;
        case cudaDevAttrComputeCapabilityMinor: *v = nullgpu_arch() % 10; break;
        case cudaDevAttrMultiProcessorCount: *v = 132; break;
        case cudaDevAttrMaxThreadsPerBlock: *v = 1024; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *v = SHARED_DEFAULT; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = SHARED_MOST; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = 228 << 10; break;
        case cudaDevAttrMaxRegistersPerBlock: *v = 65536; break;
        case cudaDevAttrWarpSize: *v = 32; break;
        case cudaDevAttrMaxGridDimX: *v = 0x7fffffff; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *v = 65535; break;
        default: *v = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, nullgpu_name());
    p->major = nullgpu_arch() / 10, p->minor = nullgpu_arch() % 10;
    p->totalGlobalMem = total_memory(), p->l2CacheSize = 50 << 20, p->multiProcessorCount = 132;
    p->sharedMemPerBlock = SHARED_DEFAULT, p->sharedMemPerBlockOptin = SHARED_MOST, p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->warpSize = 32, p->maxBlocksPerMultiProcessor = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
    p->maxThreadsPerMultiProcessor = 2048, p->textureAlignment = 512, p->unifiedAddressing = p->concurrentKernels = 1;
    p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    for (int i = 0; i < 16; i++) p->uuid.bytes[i] = (char)nullgpu_physical(device);
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) { *v = nullgpu_driver_version(); return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0, *greatest = -5; return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* text, int n, int device) {
    snprintf(text, n, "0000:00:%02x.0", 4 + nullgpu_physical(device));
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* v, int, int) { *v = 0; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
    LOCK;
    START;
    trace("sync cudaDeviceSynchronize");
    for (auto& [id, capture] : captures) capture.invalid = true;
    return captures.empty() ? cudaSuccess
                            : refuse(cudaErrorStreamCaptureUnsupported, "sync in capture: cudaDeviceSynchronize");
}
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* found) {
    static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    *function = driver ? dlsym(driver, name) : nullptr;
    if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// ---- errors
const char* cudaGetErrorName(cudaError_t code) {
    switch (code) {
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
        case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
        default: return "cudaError";
    }
}
const char* cudaGetErrorString(cudaError_t code) {
    switch (code) {
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
        default: return "an error of the null GPU: see its trace";
    }
}
cudaError_t cudaGetLastError() { cudaError_t code = last_error; last_error = cudaSuccess; return code; }
cudaError_t cudaPeekAtLastError() { return last_error; }

// ---- memory
cudaError_t cudaMalloc(void** p, size_t bytes) {
    LOCK;
    START;
    *p = nullptr;
    if (cudaError_t code = unsafe("cudaMalloc")) return code;
    bool full = !captures.empty() && (long)captures.begin()->first <= setting("NULLGPU_FULL_CAPTURES", 0);
    if (full || used[current] + bytes > total_memory()) return error(cudaErrorMemoryAllocation);
    void* memory = mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return error(cudaErrorMemoryAllocation);
    device_memory[(char*)memory] = {bytes, current};
    used[current] += bytes;
    trace("malloc " + std::to_string(bytes) + " " + std::to_string(used[current]) + " " + std::to_string(nullgpu_physical(current)));
    *p = memory;
    return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
    LOCK;
    START;
    if (!p) return cudaSuccess;
    if (cudaError_t code = unsafe("cudaFree")) return code;
    auto found = device_memory.find((char*)p);
    if (found == device_memory.end()) return refuse(cudaErrorInvalidValue, "freed memory that was not allocated");
    auto [bytes, device] = found->second;
    device_memory.erase(found);
    munmap(p, bytes ? bytes : 1);
    used[device] -= bytes;
    trace("free " + std::to_string(bytes) + " " + std::to_string(used[device]));
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
    LOCK;
    START;
    if (cudaError_t code = unsafe("cudaHostAlloc")) return code;
    if (posix_memalign(p, 4096, bytes ? bytes : 1)) return error(cudaErrorMemoryAllocation);
    pinned_memory[(char*)*p] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
    LOCK;
    if (cudaError_t code = unsafe("cudaFreeHost")) return code;
    pinned_memory.erase((char*)p);
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    LOCK;
    *total = total_memory(), *available = *total - used[current];
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    LOCK;
    memset(a, 0, sizeof *a);
    a->type = cudaMemoryTypeUnregistered;
    if (auto* found = allocation(p)) a->type = cudaMemoryTypeDevice, a->device = found->second.device, a->devicePointer = (void*)p;
    else if (pinned(p)) a->type = cudaMemoryTypeHost, a->devicePointer = a->hostPointer = (void*)p;
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return copy(to, from, bytes, stream, "cudaMemcpyAsync of pageable memory");
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
    return copy(to, from, bytes, stream, "cudaMemcpyPeerAsync");
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    LOCK;
    trace("sync cudaMemcpy");
    if (cudaError_t code = unsafe("cudaMemcpy")) return code;
    memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
    LOCK;
    START;
    if (overruns(p, bytes)) return refuse(cudaErrorInvalidValue, "set memory beyond an allocation");
    if (!as_stream(stream)->capture) memset(p, value, bytes);
    return launch("memset", dim3(1), dim3(1), 0, 0, stream);
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) { return cudaMemsetAsync(p, value, bytes, nullptr); }

// ---- streams and events
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
    START;
    *stream = (cudaStream_t) new Stream{current, priority};
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* p) { *p = as_stream(stream)->priority; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    LOCK;
    START;
    return wait_for("cudaStreamSynchronize", as_stream(stream)->capture);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    LOCK;
    if (as_stream(stream)->capture) return refuse(cudaErrorStreamCaptureUnsupported, "stream asked about in capture");
    return unsafe("cudaStreamQuery");
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { START; *event = (cudaEvent_t) new Event; return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t where) {
    LOCK;
    Stream* stream = as_stream(where);
    *(Event*)event = {stream, stream->capture, stream->work};
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }
cudaError_t cudaEventQuery(cudaEvent_t event) {
    LOCK;
    if (captures.count(((Event*)event)->capture)) return refuse(cudaErrorCapturedEvent, "event asked about in its capture");
    return unsafe("cudaEventQuery");
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    LOCK;
    return wait_for("cudaEventSynchronize", ((Event*)event)->capture);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { *ms = 1.f; return cudaSuccess; }  // never a measurement
cudaError_t cudaStreamWaitEvent(cudaStream_t where, cudaEvent_t of, unsigned) {
    LOCK;
    Stream* stream = as_stream(where);
    Event* event = (Event*)of;
    if (!captures.count(event->capture)) {
        if (stream->capture && event->stream)
            return refuse(cudaErrorStreamCaptureIsolation, "a captured stream waits for work outside its capture");
        return cudaSuccess;
    }
    Capture& capture = captures[event->capture];
    if (!stream->capture) {  // the stream forks off into the capture
        stream->capture = event->capture;
        stream->joined = stream->work++;
        capture.forked.insert(stream);
    }
    event->stream->joined = event->work;
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
    if (as_stream(stream)->capture) violation("host function in capture");
    function(argument);
    return cudaSuccess;
}

// ---- capture and graphs
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = (cudaStreamCaptureMode)before;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t where, cudaStreamCaptureMode mode) {
    LOCK;
    START;
    Stream* stream = as_stream(where);
    if (stream == &default_streams[current]) return refuse(cudaErrorStreamCaptureUnsupported, "the default stream cannot be captured");
    stream->capture = next_capture++;
    captures[stream->capture] = {new Graph{next_graph++, {}}, stream, {}, false, mode};
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t where, cudaGraph_t* graph) {
    LOCK;
    Stream* stream = as_stream(where);
    *graph = nullptr;
    auto found = captures.find(stream->capture);
    if (found == captures.end() || found->second.origin != stream) return refuse(cudaErrorIllegalState, "no capture to end");
    Capture capture = found->second;
    captures.erase(found);
    stream->capture = 0;
    bool unjoined = false;
    for (Stream* fork : capture.forked) unjoined |= fork->joined < fork->work, fork->capture = 0;
    if (capture.invalid) return refuse(cudaErrorStreamCaptureInvalidated, "the capture is invalid");
    if (unjoined) return refuse(cudaErrorStreamCaptureUnjoined, "a stream that forked off was not joined");
    write_graph(*capture.graph, std::to_string((unsigned long)where));
    *graph = (cudaGraph_t)capture.graph;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    LOCK;
    *status = as_stream(stream)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges, size_t* n) {
    LOCK;
    unsigned long long capture = as_stream(stream)->capture;
    *status = capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id) *id = capture;
    if (graph) *graph = capture ? (cudaGraph_t)captures[capture].graph : nullptr;
    if (dependencies) *dependencies = nullptr;
    if (edges) *edges = nullptr;
    if (n) *n = 0;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
    *ready = (cudaGraphExec_t)graph;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
    LOCK;
    START;
    if (as_stream(stream)->capture) violation("graph launched in capture");
    trace("replay " + std::to_string(((Graph*)ready)->id) + " " + std::to_string(used[current]) + " " + std::to_string(eager) + " " + std::to_string((unsigned long)stream));
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* n) { *n = ((Graph*)graph)->nodes.size(); return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }  // kept: what was instantiated from it points to it
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
}
