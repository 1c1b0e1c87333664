/* The library as a whole: its life, its handles, and what a device is called. */
#define _GNU_SOURCE
#include "abi.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct state library_state = {.descriptor = -1};

static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;
static char state_path[PATH_MAX];
static struct handle whole[GPUS_MAX], instances[GPUS_MAX][MIG_INSTANCES];

/* The state file lies beside the library. Its place is taken down while the library is loaded: the
 * path may be relative, and the process may change its folder later. */
__attribute__((constructor)) static void find_state(void) {
    Dl_info info;
    char own[PATH_MAX];
    if (!dladdr((void *)&library_state, &info) || !realpath(info.dli_fname, own)) return;
    char *slash = strrchr(own, '/');
    if (slash) *slash = '\0';
    if (snprintf(state_path, sizeof state_path, "%s/fake-nvml.state", own) >= (int)sizeof state_path)
        state_path[0] = '\0';
    for (unsigned int i = 0; i < GPUS_MAX; i++) {
        whole[i] = (struct handle){i, -1};
        for (int j = 0; j < MIG_INSTANCES; j++) instances[i][j] = (struct handle){i, j};
    }
}

EXPORT int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&life);
    int result = users ? OK : state_open(&library_state, state_path);
    if (result == OK) users++;
    pthread_mutex_unlock(&life);
    return result;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void) {
    pthread_mutex_lock(&life);
    int result = users ? OK : UNINITIALIZED;
    if (users && --users == 0) state_close(&library_state);
    pthread_mutex_unlock(&life);
    return result;
}

EXPORT const char *nvmlErrorString(int result) {
    switch (result) {
        case OK: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NO_PERMISSION: return "Insufficient Permissions";
        case NOT_FOUND: return "Not Found";
        case INSUFFICIENT_SIZE: return "Insufficient Size";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case TIMED_OUT: return "Timeout";
        case CORRUPTED: return "Corrupted infoROM";
        case GPU_IS_LOST: return "GPU is lost";
        case OPERATING_SYSTEM: return "Unable to call the operating system";
        case VERSION_MISMATCH: return "Driver/library version mismatch";
        case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
        default: return "Unknown Error";
    }
}

/* Copy a text out, as NVML does: whole or not at all. */
int copy_text(const char *text, char *into, unsigned int length) {
    if (!into) return INVALID_ARGUMENT;
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(into, text);
    return OK;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    return users ? copy_text(library_state.header.driver, version, length) : UNINITIALIZED;
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    return users ? copy_text("13.595.71-fake", version, length) : UNINITIALIZED;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version) {
    if (!version) return INVALID_ARGUMENT;
    *version = 13000;
    return OK;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

EXPORT int nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char path[64], text[256] = {0};
    if (!name || !length) return INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (!file) return NOT_FOUND;
    size_t count = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    if (count && text[count - 1] == '\n') text[count - 1] = '\0';
    snprintf(name, length, "%s", text);
    return OK;
}

/* Tell whether a pointer is a handle that this library gave out. */
static bool known(nvmlDevice_t device) {
    const char *at = (const char *)device, *first = (const char *)whole;
    const char *second = (const char *)instances;
    size_t offset;
    if (at >= first && at < first + sizeof whole)
        offset = (size_t)(at - first);
    else if (at >= second && at < second + sizeof instances)
        offset = (size_t)(at - second);
    else
        return false;
    return offset % sizeof(struct handle) == 0;
}

/* Read the GPU that a handle belongs to. */
int resolve(nvmlDevice_t device, struct record *gpu) {
    if (!users) return UNINITIALIZED;
    return known(device) ? look(&library_state, device->gpu, gpu) : INVALID_ARGUMENT;
}

/* Read a GPU for a call that MIG instances do not serve. */
int resolve_whole(nvmlDevice_t device, struct record *gpu) {
    if (users && known(device) && device->instance >= 0) return NOT_SUPPORTED;
    return resolve(device, gpu);
}

/* Change a GPU, if callers may. Rights are looked at before arguments, as the driver does. */
int change_device(nvmlDevice_t device, change_fn change, void *argument) {
    struct record gpu;
    int result = resolve_whole(device, &gpu);
    if (result == OK) result = state_header(&library_state);
    if (result) return result;
    if (!library_state.header.permitted) return NO_PERMISSION;
    return alter(&library_state, device->gpu, change, argument);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count) {
    if (!users) return UNINITIALIZED;
    if (!count) return INVALID_ARGUMENT;
    *count = library_state.header.gpus;
    return OK;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    struct record gpu;
    if (!users) return UNINITIALIZED;
    if (!device || index >= library_state.header.gpus) return INVALID_ARGUMENT;
    int result = look(&library_state, index, &gpu);
    if (result == OK) *device = &whole[index];
    return result;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    struct record gpu;
    if (!users) return UNINITIALIZED;
    if (!uuid || !device) return INVALID_ARGUMENT;
    for (unsigned int i = 0; i < library_state.header.gpus; i++) {
        if (peek(&library_state, i, &gpu)) continue;
        nvmlDevice_t found = strcmp(gpu.uuid, uuid) == 0 ? &whole[i] : NULL;
        for (int j = 0; j < MIG_INSTANCES && gpu.flags & FLAG_MIG; j++)
            if (strcmp(gpu.mig_uuid[j], uuid) == 0) found = &instances[i][j];
        if (!found) continue;
        int result = look(&library_state, i, &gpu);
        if (result == OK) *device = found;
        return result;
    }
    return NOT_FOUND;
}

static void bus_id(const struct record *gpu, char *text, size_t size) {
    snprintf(text, size, "%08X:%02X:00.0", gpu->index / 128, 2 * (gpu->index % 128) + 1);
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device) {
    if (!users) return UNINITIALIZED;
    if (!bus || !device) return INVALID_ARGUMENT;
    for (unsigned int i = 0; i < library_state.header.gpus; i++) {
        struct record gpu = {.index = i};
        char own[32];
        bus_id(&gpu, own, sizeof own);
        /* The domain may be written with four digits or with eight. */
        if (strcasecmp(own, bus) == 0 || strcasecmp(own + 4, bus) == 0)
            return nvmlDeviceGetHandleByIndex_v2(i, device);
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    struct record gpu;
    if (!info) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    memset(info, 0, sizeof *info);
    bus_id(&gpu, info->busId, sizeof info->busId);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%s", info->busId + 4);
    info->domain = gpu.index / 128;
    info->bus = 2 * (gpu.index % 128) + 1;
    info->pciDeviceId = 0x233010DE;
    return OK;
}

EXPORT int nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    struct record gpu;
    if (!index) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *index = gpu.index;
    return result;
}

EXPORT int nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    return nvmlDeviceGetIndex(device, minor);
}

EXPORT int nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    struct record gpu;
    int result = resolve(device, &gpu);
    return result ? result : copy_text(gpu.board.name, name, length);
}

EXPORT int nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    struct record gpu;
    int result = resolve(device, &gpu);
    if (result) return result;
    return copy_text(device->instance < 0 ? gpu.uuid : gpu.mig_uuid[device->instance], uuid, length);
}

EXPORT int nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    struct record gpu;
    char text[30];
    int result = resolve_whole(device, &gpu);
    snprintf(text, sizeof text, "165%010u", gpu.index);
    return result ? result : copy_text(text, serial, length);
}

EXPORT int nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture) {
    struct record gpu;
    if (!architecture) return INVALID_ARGUMENT;
    int result = resolve(device, &gpu);
    if (result == OK) *architecture = gpu.board.architecture;
    return result;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    struct record gpu;
    if (!major || !minor) return INVALID_ARGUMENT;
    int result = resolve(device, &gpu);
    if (result) return result;
    *major = (int)gpu.board.compute_major;
    *minor = (int)gpu.board.compute_minor;
    return OK;
}

EXPORT int nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand) {
    struct record gpu;
    if (!brand) return INVALID_ARGUMENT;
    int result = resolve(device, &gpu);
    if (result == OK) *brand = 14; /* NVML_BRAND_NVIDIA */
    return result;
}

EXPORT int nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned int *mode) {
    struct record gpu;
    if (!mode) return INVALID_ARGUMENT;
    int result = resolve(device, &gpu);
    if (result == OK) *mode = gpu.flags & FLAG_VIRTUAL ? 2 : 0; /* NVML_GPU_VIRTUALIZATION_MODE_VGPU */
    return result;
}

EXPORT int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    struct record gpu;
    if (!current || !pending) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *current = *pending = gpu.flags & FLAG_MIG ? 1 : 0;
    return result;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    struct record gpu;
    if (!count) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *count = MIG_SLOTS;
    return result;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                               nvmlDevice_t *instance) {
    struct record gpu;
    if (!instance) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    if (index >= MIG_SLOTS) return INVALID_ARGUMENT;
    if (!(gpu.flags & FLAG_MIG) || index >= MIG_INSTANCES) return NOT_FOUND;
    *instance = &instances[gpu.index][index];
    return OK;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_instance) {
    if (!users) return UNINITIALIZED;
    if (!is_instance || !known(device)) return INVALID_ARGUMENT;
    *is_instance = device->instance >= 0;
    return OK;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance,
                                                        nvmlDevice_t *device) {
    if (!users) return UNINITIALIZED;
    if (!device || !known(instance) || instance->instance < 0) return INVALID_ARGUMENT;
    *device = &whole[instance->gpu];
    return OK;
}
