// A made-up libcuda.so.1 over host memory, for tests of the code that drives a GPU.
//
// Work of a stream is queued and done as late as the interface allows: when an event behind it or the stream is
// waited for. Wrong use that the real driver need not notice (pageable memory in an asynchronous copy, memory that is
// freed under a copy, another thread's recording) ends the process with a message.
//
// Devices: FAKE_DEVICES (1), of compute capability FAKE_CAPABILITY (90), with FAKE_GIB (1) GiB each. FAKE_PEER: 0 = no access
// between devices, broken = copies between devices have a wrong byte. FAKE_HANG: work never ends, as far as one asks.
// FAKE_FORGETS: what large copies bring to a device is not kept, so that they cost nothing.

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int setting(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text ? atoi(text) : otherwise;
}

#define MEMORY_BYTES ((size_t)setting("FAKE_GIB", 1) << 30)
#define CHECK(condition, text) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "made-up libcuda: %s: %s\n", __func__, text); \
            abort(); \
        } \
    } while (0)
// Devices are driven by threads of their own: one call at a time, until it returns. The first line of a function.
#define ALONE() __attribute__((unused, cleanup(leave))) int is_alone = !pthread_mutex_lock(&calling)
// Counts a call; it fails where a test asked for it.
#define ENTER() \
    ALONE(); \
    do { \
        int code = entered(); \
        if (code) return code; \
    } while (0)
#define NEEDS_CONTEXT() \
    do { \
        if (!current) return 201; \
    } while (0)

enum Kind { CONTEXT, STREAM, EVENT, DEVICE_MEMORY, HOST_MEMORY, MODULE, FUNCTION, GRAPH, EXECUTABLE };

typedef struct Object {
    enum Kind kind;
    struct Object* next;
    int device;
    // Memory.
    char* bytes;
    size_t size;
    // Streams.
    struct Op *first, **last;
    struct Object* recording;
    pthread_t recorder;
    int given_up;
    // Events: the number of the op that recorded it, whether it takes times, and the time at which it was reached.
    uint64_t recorded, reached;
    int timed;
    // Modules: text. Functions: name, parameter bytes, shared bytes, local bytes, most dynamic shared bytes.
    char* text;
    char name[64];
    size_t parameters;
    int shared, local, dynamic, loaded;
    struct Object* module;
    // Contexts.
    int retained;
    unsigned peers;
} Object;

typedef struct Launch {
    uint32_t grid[3], threads, shared, bytes, dependent;
    char name[64];
    unsigned char parameters[4096];
} Launch;

typedef struct Op {
    enum { COPY, SET, KERNEL, RECORD } kind;
    struct Op* next;
    char *to, *from;
    size_t size;
    int value;
    Launch launch;
    Object* event;
    uint64_t number;
} Op;

typedef struct {
    unsigned grid[3], block[3], shared;
    Object* stream;
    void* attributes;
    unsigned num_attributes;
} Config;

static pthread_mutex_t calling = PTHREAD_MUTEX_INITIALIZER;
static void leave(int* is_alone) { (void)is_alone, pthread_mutex_unlock(&calling); }

static Object* objects;
static Object* contexts[16];
static __thread Object* current;
static uint64_t op_number = 1, device_time;
static long calls, fail_at;
static int fail_code, fail_on;
static Launch launches[256];
static long num_launches;
static size_t device_bytes[16];

// Entry points of the tests.

// The n-th call from now fails with a code; with on, all later ones fail too.
void fake_fail(long n, int code, int on) { calls = 0; fail_at = n; fail_code = code; fail_on = on; }
long fake_calls(void) { return calls; }
long fake_live(void) {
    long count = 0;
    for (Object* object = objects; object; object = object->next) count += object->kind != FUNCTION;
    return count;
}
long fake_launches(void) { return num_launches; }
const Launch* fake_launch(long n) { return &launches[n]; }

static int entered(void) {
    ++calls;
    return fail_at && (calls == fail_at || (fail_on && calls > fail_at)) ? fail_code : 0;
}

static Object* make(enum Kind kind, int device) {
    Object* object = calloc(1, sizeof *object);
    *object = (Object){.kind = kind, .next = objects, .device = device};
    return objects = object;
}

static int alive(Object* object, enum Kind kind) {
    for (Object* at = objects; at; at = at->next)
        if (at == object) return at->kind == kind;
    return 0;
}

static void destroy(Object* object) {
    for (Object** at = &objects; *at; at = &(*at)->next) {
        if (*at == object) {
            *at = object->next;
            break;
        }
    }
    free(object->text);
    free(object);
}

// Memory of a kind that has all these bytes.
static Object* memory(enum Kind kind, const char* at, size_t size) {
    for (Object* object = objects; object; object = object->next)
        if (object->kind == kind && at >= object->bytes && at + size <= object->bytes + object->size) return object;
    return NULL;
}

static int in_use(Object* object) {
    for (Object* stream = objects; stream; stream = stream->next) {
        if (stream->kind != STREAM) continue;
        for (Op* op = stream->first; op; op = op->next) {
            int overlaps = (op->to >= object->bytes && op->to < object->bytes + object->size) ||
                           (op->from >= object->bytes && op->from < object->bytes + object->size);
            if (op->kind != RECORD && object->size && overlaps) return 1;
        }
    }
    return 0;
}

static Op* enqueue(Object* stream) {
    Op* op = calloc(1, sizeof *op);
    op->number = op_number++;
    if (!stream->last) stream->last = &stream->first;
    *stream->last = op;
    stream->last = &op->next;
    return op;
}

// The one kernel that does something: adds a value to bytes.
static void run(const Launch* launch) {
    if (strcmp(launch->name, "add") == 0) {
        struct { uint64_t address; uint32_t count, value; } p;
        memcpy(&p, launch->parameters, sizeof p);
        CHECK(memory(DEVICE_MEMORY, (char*)p.address, p.count), "illegal address");
        for (uint32_t i = 0; i < p.count; ++i) ((unsigned char*)p.address)[i] += p.value;
    }
}

// Does the work of a stream up to and with an op.
static void progress(Object* stream, uint64_t number) {
    while (stream->first && stream->first->number <= number) {
        Op* op = stream->first;
        if (op->kind == COPY) memcpy(op->to, op->from, op->size);
        if (op->kind == COPY && op->value) op->to[op->size / 2] ^= 1;
        if (op->kind == SET) memset(op->to, op->value, op->size);
        if (op->kind == KERNEL) run(&op->launch);
        // A clock of its own: a millisecond for a kernel or a copy.
        if (op->kind != RECORD) ++device_time;
        if (op->kind == RECORD && alive(op->event, EVENT)) op->event->reached = device_time;
        stream->first = op->next;
        if (!stream->first) stream->last = &stream->first;
        free(op);
    }
}

static int recording(Object* stream) {
    if (stream->recording) stream->given_up = 1;
    return stream->recording != NULL;
}

static int any_recording(void) {
    for (Object* at = objects; at; at = at->next)
        if (at->kind == STREAM && at->recording && pthread_equal(at->recorder, pthread_self())) return recording(at);
    return 0;
}

// Devices.

int cuGetErrorName(int code, const char** text) {
    *text = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : NULL;
    return *text ? 0 : 1;
}
int cuGetErrorString(int code, const char** text) {
    *text = code == 2 ? "out of memory" : NULL;
    return *text ? 0 : 1;
}
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuInit(unsigned flags) { ENTER(); return flags ? 1 : 0; }
int cuDeviceGetCount(int* count) { *count = setting("FAKE_DEVICES", 1); return 0; }
int cuDeviceGet(int* device, int ordinal) {
    ENTER();
    if (ordinal < 0 || ordinal >= setting("FAKE_DEVICES", 1)) return 101;
    *device = ordinal;
    return 0;
}
int cuDeviceGetName(char* name, int length, int device) {
    snprintf(name, length, "Made-up GPU %d", device);
    return 0;
}
int cuDeviceGetUuid_v2(char uuid[16], int device) {
    ENTER();
    memset(uuid, 0x10 + device, 16);
    return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) { (void)device; *bytes = MEMORY_BYTES; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    ENTER();
    (void)device;
    int capability = setting("FAKE_CAPABILITY", 90);
    *value = attribute == 16 ? 132 : attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : -1;
    return 0;
}
int cuDeviceGetPCIBusId(char* text, int length, int device) {
    ENTER();
    snprintf(text, length, "0000:%02X:00.0", device + 1);
    return 0;
}
int cuDeviceCanAccessPeer(int* can, int device, int peer) {
    ENTER();
    const char* text = getenv("FAKE_PEER");
    *can = device != peer && !(text && strcmp(text, "0") == 0);
    return 0;
}

// Contexts.

int cuDevicePrimaryCtxRetain(Object** context, int device) {
    ENTER();
    if (!contexts[device]) contexts[device] = make(CONTEXT, device);
    contexts[device]->retained++;
    *context = contexts[device];
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    ALONE();
    int code = entered();
    Object* context = contexts[device];
    CHECK(context && context->retained > 0, "the context is not retained");
    if (--context->retained == 0) {
        for (Object* at = objects; at; at = at->next)
            CHECK(at == context || at->device != device || at->kind == FUNCTION, "objects are alive");
        if (current == context) current = NULL;
        contexts[device] = NULL;
        destroy(context);
    }
    return code;
}
int cuCtxSetCurrent(Object* context) {
    ENTER();
    CHECK(!context || alive(context, CONTEXT), "no such context");
    current = context;
    return 0;
}

// Streams and events.

int cuStreamCreate(Object** stream, unsigned flags) {
    ENTER();
    NEEDS_CONTEXT();
    CHECK(flags == 1, "the stream waits for the default stream");
    *stream = make(STREAM, current->device);
    return 0;
}
int cuStreamDestroy_v2(Object* stream) {
    ALONE();
    int code = entered();
    CHECK(alive(stream, STREAM) && !stream->recording, "no stream, or one that is captured");
    progress(stream, UINT64_MAX);
    destroy(stream);
    return code;
}
int cuStreamSynchronize(Object* stream) {
    ALONE();
    // An error is one of the work: the stream is idle all the same.
    int code = entered();
    NEEDS_CONTEXT();
    if (recording(stream)) return 900;
    progress(stream, UINT64_MAX);
    return code;
}
int cuEventCreate(Object** event, unsigned flags) {
    ENTER();
    NEEDS_CONTEXT();
    CHECK((flags & ~3u) == 0, "flags");
    *event = make(EVENT, current->device);
    (*event)->timed = !(flags & 2);
    return 0;
}
int cuEventDestroy_v2(Object* event) {
    ALONE();
    int code = entered();
    CHECK(alive(event, EVENT), "no event");
    destroy(event);
    return code;
}
int cuEventRecord(Object* event, Object* stream) {
    ENTER();
    CHECK(alive(event, EVENT) && alive(stream, STREAM) && event->device == stream->device, "no event or no stream");
    if (recording(stream)) return 900;
    Op* op = enqueue(stream);
    op->kind = RECORD;
    op->event = event;
    event->recorded = op->number;
    return 0;
}
// Of a recording: its replays record the event.
int cuEventRecordWithFlags(Object* event, Object* stream, unsigned flags) {
    ENTER();
    CHECK(alive(event, EVENT) && alive(stream, STREAM) && event->device == stream->device, "no event or no stream");
    CHECK(flags == 1 && stream->recording, "not external, or outside of a recording");
    if (!pthread_equal(stream->recorder, pthread_self())) return 900;
    Op* op = enqueue(stream->recording);
    op->kind = RECORD;
    op->event = event;
    return 0;
}
int cuEventSynchronize(Object* event) {
    ENTER();
    CHECK(alive(event, EVENT), "no event");
    if (any_recording()) return 900;
    for (Object* at = objects; at; at = at->next)
        if (at->kind == STREAM && at->device == event->device) progress(at, event->recorded);
    return 0;
}

int cuEventQuery(Object* event) {
    ENTER();
    CHECK(alive(event, EVENT), "no event");
    if (any_recording()) return 900;
    if (setting("FAKE_HANG", 0)) return 600;
    for (Object* at = objects; at; at = at->next)
        if (at->kind == STREAM && at->device == event->device) progress(at, event->recorded);
    return 0;
}

int cuEventElapsedTime(float* milliseconds, Object* start, Object* end) {
    ENTER();
    CHECK(alive(start, EVENT) && alive(end, EVENT) && start->timed && end->timed, "no events with times");
    if (!start->recorded || !end->recorded) return 400;
    if (!end->reached) return 600;
    *milliseconds = (float)(end->reached - start->reached);
    return 0;
}

// Memory.

int cuMemAlloc_v2(uint64_t* address, size_t size) {
    ENTER();
    NEEDS_CONTEXT();
    if (any_recording()) return 900;
    if (!size) return 1;
    if (device_bytes[current->device] + size > MEMORY_BYTES) return 2;
    char* bytes = aligned_alloc(512, (size + 511) / 512 * 512);
    if (!bytes) return 2;
    memset(bytes, 0xa5, size < 4096 ? size : 4096);
    Object* object = make(DEVICE_MEMORY, current->device);
    object->bytes = bytes;
    object->size = size;
    device_bytes[object->device] += size;
    *address = (uint64_t)bytes;
    return 0;
}
static int release(enum Kind kind, const char* bytes) {
    ALONE();
    int code = entered();
    Object* object = memory(kind, bytes, 1);
    CHECK(object, "no such memory");
    CHECK(!in_use(object), "memory is freed under a copy");
    if (object->kind == DEVICE_MEMORY) device_bytes[object->device] -= object->size;
    free(object->bytes);
    destroy(object);
    return code;
}
int cuMemFree_v2(uint64_t address) { return release(DEVICE_MEMORY, (char*)address); }
int cuMemGetInfo_v2(size_t* unused, size_t* total) {
    ENTER();
    NEEDS_CONTEXT();
    *unused = MEMORY_BYTES - device_bytes[current->device];
    *total = MEMORY_BYTES;
    return 0;
}
int cuMemHostAlloc(void** pointer, size_t size, unsigned flags) {
    ENTER();
    NEEDS_CONTEXT();
    CHECK(flags == 1, "flags");
    if (any_recording()) return 900;
    char* bytes = size ? aligned_alloc(4096, (size + 4095) / 4096 * 4096) : NULL;
    if (!bytes) return size ? 2 : 1;
    Object* object = make(HOST_MEMORY, current->device);
    object->bytes = bytes;
    object->size = size;
    *pointer = bytes;
    return 0;
}
int cuMemFreeHost(void* pointer) { return release(HOST_MEMORY, pointer); }
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, Object* stream) {
    ENTER();
    NEEDS_CONTEXT();
    CHECK(alive(stream, STREAM) && stream->device == current->device, "no stream of the context");
    if (recording(stream)) return 900;
    CHECK(memory(DEVICE_MEMORY, (char*)address, size), "not memory of a device");
    Op* op = enqueue(stream);
    op->kind = SET, op->to = (char*)address, op->value = value, op->size = size;
    return 0;
}
static int copy(char* to, enum Kind to_kind, char* from, enum Kind from_kind, size_t size, Object* stream) {
    ENTER();
    NEEDS_CONTEXT();
    CHECK(alive(stream, STREAM) && stream->device == current->device, "no stream of the context");
    if (recording(stream)) return 900;
    CHECK(memory(to_kind, to, size) && memory(from_kind, from, size), "not memory of the expected kind");
    Op* op = enqueue(stream);
    op->kind = COPY, op->to = to, op->from = from, op->size = size;
    if (size >= 1 << 16 && to_kind == DEVICE_MEMORY && setting("FAKE_FORGETS", 0)) op->size = 0;
    return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, void* from, size_t size, Object* stream) {
    return copy((char*)to, DEVICE_MEMORY, from, HOST_MEMORY, size, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, Object* stream) {
    return copy(to, HOST_MEMORY, (char*)from, DEVICE_MEMORY, size, stream);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, Object* stream) {
    return copy((char*)to, DEVICE_MEMORY, (char*)from, DEVICE_MEMORY, size, stream);
}
int cuCtxEnablePeerAccess(Object* peer, unsigned flags) {
    ENTER();
    NEEDS_CONTEXT();
    CHECK(alive(peer, CONTEXT) && peer != current && !flags, "no peer, or flags");
    unsigned bit = 1u << peer->device;
    if (current->peers & bit) return 704;
    current->peers |= bit;
    return 0;
}
int cuMemcpyPeerAsync(uint64_t to, Object* to_context, uint64_t from, Object* from_context, size_t size, Object* stream) {
    ENTER();
    NEEDS_CONTEXT();
    Object *target = memory(DEVICE_MEMORY, (char*)to, size), *source = memory(DEVICE_MEMORY, (char*)from, size);
    CHECK(alive(to_context, CONTEXT) && target && target->device == to_context->device, "target and its context");
    CHECK(alive(from_context, CONTEXT) && source && source->device == from_context->device, "source and its context");
    CHECK(alive(stream, STREAM) && stream->device == current->device, "no stream of the context");
    Op* op = enqueue(stream);
    op->kind = COPY, op->to = (char*)to, op->from = (char*)from, op->size = size;
    const char* text = getenv("FAKE_PEER");
    op->value = text && strcmp(text, "broken") == 0;
    return 0;
}

// Modules. An image is "\177ELF" and lines of: name, parameter bytes, static shared bytes, local bytes.

int cuModuleLoadData(Object** module, const char* image) {
    ENTER();
    NEEDS_CONTEXT();
    if (any_recording()) return 900;
    CHECK(memcmp(image, "\177ELF", 4) == 0, "not an ELF file");
    *module = make(MODULE, current->device);
    (*module)->text = strdup(image + 4);
    return 0;
}
int cuModuleUnload(Object* module) {
    ALONE();
    int code = entered();
    if (!current) return 201;
    CHECK(alive(module, MODULE), "no module");
    for (Object *at = objects, *next; at; at = next) {
        next = at->next;
        if (at->kind == FUNCTION && at->module == module) destroy(at);
    }
    destroy(module);
    return code;
}
int cuModuleGetFunction(Object** function, Object* module, const char* name) {
    ENTER();
    NEEDS_CONTEXT();
    CHECK(alive(module, MODULE), "no module");
    char* text = strdup(module->text);
    for (char *rest, *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char found[64];
        unsigned long parameters;
        int shared, local;
        if (sscanf(line, "%63s %lu %d %d", found, &parameters, &shared, &local) == 4 && strcmp(found, name) == 0) {
            Object* object = make(FUNCTION, module->device);
            memcpy(object->name, found, sizeof found);
            object->parameters = parameters, object->shared = shared, object->local = local;
            object->dynamic = 49152 - shared, object->module = module;
            *function = object;
            free(text);
            return 0;
        }
    }
    free(text);
    return 500;
}
int cuFuncLoad(Object* function) {
    ENTER();
    CHECK(alive(function, FUNCTION), "no function");
    function->loaded = 1;
    return 0;
}
int cuFuncGetAttribute(int* value, int attribute, Object* function) {
    ENTER();
    CHECK(alive(function, FUNCTION), "no function");
    CHECK(attribute == 1 || attribute == 3, "attribute");
    *value = attribute == 1 ? function->shared : function->local;
    return 0;
}
int cuFuncSetAttribute(Object* function, int attribute, int value) {
    ENTER();
    CHECK(alive(function, FUNCTION), "no function");
    if (attribute == 9) {
        CHECK(value >= 0 && value <= 100, "carveout");
        return 0;
    }
    CHECK(attribute == 8, "attribute");
    int capability = setting("FAKE_CAPABILITY", 90);
    int least = capability == 86 || capability == 89 || capability == 120;
    if (value + function->shared > (least ? 101376 : capability == 80 ? 166912 : 232448)) return 1;
    function->dynamic = value;
    return 0;
}
int cuFuncGetParamInfo(Object* function, size_t index, size_t* offset, size_t* size) {
    ENTER();
    CHECK(alive(function, FUNCTION), "no function");
    if (index || !function->parameters) return 1;
    *offset = 0;
    *size = function->parameters;
    return 0;
}
// Of 132 multiprocessors four are in no cluster.
int cuOccupancyMaxActiveClusters(int* clusters, Object* function, const Config* config) {
    ENTER();
    CHECK(alive(function, FUNCTION), "no function");
    CHECK(config->num_attributes == 1 && *(uint32_t*)config->attributes == 4, "attribute");
    uint32_t blocks;
    memcpy(&blocks, (char*)config->attributes + 8, sizeof blocks);
    CHECK(blocks && !(config->grid[0] % blocks), "blocks of a cluster");
    *clusters = 128 / blocks;
    return 0;
}
int cuLaunchKernelEx(const Config* config, Object* function, void** parameters, void** extra) {
    ALONE();
    Object* stream = config->stream;
    int code = entered();
    if (code) {
        recording(stream);
        return code;
    }
    NEEDS_CONTEXT();
    CHECK(alive(function, FUNCTION) && alive(function->module, MODULE), "no function");
    CHECK(alive(stream, STREAM) && stream->device == current->device, "no stream of the context");
    CHECK(function->device == stream->device, "function of another device");
    CHECK(!config->attributes == !config->num_attributes && config->num_attributes < 2, "attributes");
    int dependent = 0;
    if (config->attributes) {
        // The only attribute: programmatic stream serialization, behind a kernel.
        CHECK(*(uint32_t*)config->attributes == 6, "attribute");
        memcpy(&dependent, (char*)config->attributes + 8, sizeof dependent);
        Op* last = (stream->recording ? stream->recording : stream)->first;
        while (last && last->next) last = last->next;
        CHECK(dependent == 1 && (!last || last->kind == KERNEL), "nothing to depend on");
    }
    CHECK(!parameters && extra && extra[0] == (void*)1 && extra[2] == (void*)2 && !extra[4], "parameters");
    CHECK(*(size_t*)extra[3] == function->parameters, "size of the parameters");
    for (int i = 0; i < 3; ++i)
        if (!config->grid[i] || !config->block[i]) return 1;
    if (config->block[0] > 1024 || (int)config->shared > function->dynamic) return 1;
    CHECK(function->loaded || !stream->recording, "code is loaded in a recording");
    Launch launch = {.threads = config->block[0], .shared = config->shared, .bytes = (uint32_t)function->parameters, .dependent = dependent};
    memcpy(launch.grid, config->grid, sizeof launch.grid);
    memcpy(launch.name, function->name, sizeof launch.name);
    memcpy(launch.parameters, extra[1], function->parameters);
    Op* op = enqueue(stream->recording ? stream->recording : stream);
    op->kind = KERNEL;
    op->launch = launch;
    if (!stream->recording) launches[num_launches++ % 256] = launch;
    return 0;
}

// Graphs. A graph is a queue of ops that no stream works on.

int cuStreamBeginCapture_v2(Object* stream, int mode) {
    ENTER();
    CHECK(mode == 1, "the mode is not thread-local");
    if (recording(stream)) return 900;
    stream->recording = make(GRAPH, stream->device);
    stream->recorder = pthread_self();
    stream->given_up = 0;
    return 0;
}
int cuStreamEndCapture(Object* stream, Object** graph) {
    ALONE();
    int code = entered();
    if (!stream->recording) return 401;
    if (!pthread_equal(stream->recorder, pthread_self())) return 908;
    *graph = stream->recording;
    stream->recording = NULL;
    if (code || stream->given_up) {
        progress(*graph, 0);
        destroy(*graph);
        *graph = NULL;
        return code ? code : 901;
    }
    return 0;
}
static Op* copy_of(Op* ops, Object* target) {
    for (Op* op = ops; op; op = op->next) {
        Op* copy = enqueue(target);
        copy->kind = op->kind;
        copy->launch = op->launch;
        copy->event = op->event;
        if (op->kind == RECORD) op->event->recorded = copy->number;
    }
    return target->first;
}
int cuGraphInstantiateWithFlags(Object** executable, Object* graph, uint64_t flags) {
    ENTER();
    CHECK(alive(graph, GRAPH) && !flags, "no graph, or flags");
    *executable = make(EXECUTABLE, graph->device);
    copy_of(graph->first, *executable);
    return 0;
}
static void drop_ops(Object* object) {
    while (object->first) {
        Op* op = object->first;
        object->first = op->next;
        free(op);
    }
}
int cuGraphDestroy(Object* graph) {
    ALONE();
    int code = entered();
    CHECK(alive(graph, GRAPH), "no graph");
    drop_ops(graph);
    destroy(graph);
    return code;
}
int cuGraphExecDestroy(Object* executable) {
    ALONE();
    int code = entered();
    CHECK(alive(executable, EXECUTABLE), "no graph");
    drop_ops(executable);
    destroy(executable);
    return code;
}
int cuGraphUpload(Object* executable, Object* stream) {
    ENTER();
    NEEDS_CONTEXT();
    CHECK(alive(executable, EXECUTABLE) && alive(stream, STREAM), "no graph or no stream");
    return 0;
}
int cuGraphLaunch(Object* executable, Object* stream) {
    ENTER();
    NEEDS_CONTEXT();
    CHECK(alive(executable, EXECUTABLE) && alive(stream, STREAM), "no graph or no stream");
    if (recording(stream)) return 900;
    for (Op* op = executable->first; op; op = op->next)
        if (op->kind == KERNEL) launches[num_launches++ % 256] = op->launch;
    copy_of(executable->first, stream);
    return 0;
}
