/* What a device tells and what it is told: power, energy, clocks, limits and processes. */
#include "abi.h"

#include <string.h>

enum { CLOCK_TYPE_GRAPHICS, CLOCK_TYPE_SM, CLOCK_TYPE_MEMORY, CLOCK_TYPE_VIDEO };

/* Instead of a frequency: "the base clock" and "no bound" (NVML_CLOCK_LIMIT_ID_*). */
static const unsigned int SYMBOL_FIRST = 0xffffff00u;

static struct sensed sensed_now(const struct record *gpu) {
    return sense(gpu, gpu->updated_ns, wall_us());
}

EXPORT int nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power_mw) {
    struct record gpu;
    if (!power_mw) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    struct sensed now = sensed_now(&gpu);
    *power_mw = gpu.board.averages ? now.average_mw : now.power_mw;
    return OK;
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy_mj) {
    struct record gpu;
    if (!energy_mj) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    if (gpu.flags & FLAG_NO_COUNTER) return NOT_SUPPORTED;
    *energy_mj = sensed_now(&gpu).counter_mj;
    return OK;
}

static void give_ui(nvmlFieldValue_t *field, unsigned int value) {
    field->valueType = VALUE_UNSIGNED_INT;
    field->value.ull = 0;
    field->value.ui = value;
}

static void give_ull(nvmlFieldValue_t *field, unsigned long long value) {
    field->valueType = VALUE_UNSIGNED_LONG_LONG;
    field->value.ull = value;
}

/* Fill one field; give its own return code. */
static int fill(const struct record *gpu, const struct sensed *now, nvmlFieldValue_t *field) {
    if (field->scopeId) return NOT_SUPPORTED; /* module, memory and base die have no sensor here */
    switch (field->fieldId) {
        case 74: give_ull(field, gpu->capped_ns); return OK;
        case 83:
        case 191:
            if (gpu->flags & FLAG_NO_COUNTER) return NOT_SUPPORTED;
            give_ull(field, now->counter_mj);
            return OK;
        case 185:
            if (!gpu->board.averages) return NOT_SUPPORTED;
            give_ui(field, now->average_mw);
            return OK;
        case 186: give_ui(field, now->power_mw); return OK;
        case 187: give_ui(field, gpu->board.min_mw); return OK;
        case 188: give_ui(field, gpu->board.max_mw); return OK;
        case 189: give_ui(field, gpu->board.default_mw); return OK;
        case 190: give_ui(field, enforced_mw(gpu)); return OK;
        case 192: give_ui(field, gpu->requested_mw); return OK;
        default: return NOT_SUPPORTED;
    }
}

EXPORT int nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    struct record gpu;
    if (!fields || count <= 0) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    struct sensed now = sensed_now(&gpu);
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = (int64_t)now.wall_us;
        fields[i].latencyUsec = 0;
        fields[i].nvmlReturn = fill(&gpu, &now, &fields[i]);
    }
    return OK;
}

EXPORT int nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *limit_mw) {
    struct record gpu;
    if (!limit_mw) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *limit_mw = gpu.requested_mw;
    return result;
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit_mw) {
    struct record gpu;
    if (!limit_mw) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *limit_mw = enforced_mw(&gpu);
    return result;
}

EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *limit_mw) {
    struct record gpu;
    if (!limit_mw) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *limit_mw = gpu.board.default_mw;
    return result;
}

EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min_mw,
                                                        unsigned int *max_mw) {
    struct record gpu;
    if (!min_mw || !max_mw) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    *min_mw = gpu.board.min_mw;
    *max_mw = gpu.board.max_mw;
    return OK;
}

static int set_limit(struct record *gpu, void *argument) {
    unsigned int limit_mw = *(const unsigned int *)argument;
    if (limit_mw < gpu->board.min_mw || limit_mw > gpu->board.max_mw) return INVALID_ARGUMENT;
    gpu->requested_mw = limit_mw;
    return OK;
}

EXPORT int nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit_mw) {
    return change_device(device, set_limit, &limit_mw);
}

EXPORT int nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t *value) {
    if (!value) return INVALID_ARGUMENT;
    if (value->version != STRUCT_VERSION(nvmlPowerValue_v2_t, 2)) return ARGUMENT_VERSION_MISMATCH;
    if ((value->powerScope & 0xff) != 0) return NOT_SUPPORTED; /* the scope is one byte */
    return change_device(device, set_limit, &value->powerValueMw);
}

struct range {
    unsigned int min_mhz, max_mhz;
};

static int set_lock(struct record *gpu, void *argument) {
    struct range wish = *(const struct range *)argument;
    bool symbolic = wish.min_mhz >= SYMBOL_FIRST;
    if (symbolic != (wish.max_mhz >= SYMBOL_FIRST)) return INVALID_ARGUMENT; /* never mixed */
    if (symbolic) wish.min_mhz = wish.max_mhz = gpu->board.clock_max_mhz;
    if (wish.min_mhz > wish.max_mhz || wish.min_mhz < gpu->board.clock_min_mhz ||
        wish.max_mhz > gpu->board.clock_max_mhz)
        return INVALID_ARGUMENT;
    gpu->lock_min_mhz = wish.min_mhz;
    gpu->lock_max_mhz = wish.max_mhz;
    return OK;
}

EXPORT int nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int min_mhz,
                                        unsigned int max_mhz) {
    struct range wish = {min_mhz, max_mhz};
    return change_device(device, set_lock, &wish);
}

static int reset_lock(struct record *gpu, void *argument) {
    (void)argument;
    gpu->lock_min_mhz = gpu->lock_max_mhz = 0;
    return OK;
}

EXPORT int nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device) {
    return change_device(device, reset_lock, NULL);
}

static int set_memory_lock(struct record *gpu, void *argument) {
    struct range wish = *(const struct range *)argument;
    if (wish.max_mhz != gpu->board.memory_clock_mhz || wish.min_mhz > wish.max_mhz)
        return INVALID_ARGUMENT;
    gpu->memory_lock_mhz = wish.max_mhz;
    return OK;
}

EXPORT int nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int min_mhz,
                                           unsigned int max_mhz) {
    struct range wish = {min_mhz, max_mhz};
    return change_device(device, set_memory_lock, &wish);
}

static int reset_memory_lock(struct record *gpu, void *argument) {
    (void)argument;
    gpu->memory_lock_mhz = 0;
    return OK;
}

EXPORT int nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device) {
    return change_device(device, reset_memory_lock, NULL);
}

static unsigned int clock_of(const struct record *gpu, unsigned int type, bool highest) {
    if (type == CLOCK_TYPE_MEMORY) return gpu->board.memory_clock_mhz;
    return highest ? gpu->board.clock_max_mhz : gpu->clock_mhz;
}

static int give_clock(nvmlDevice_t device, unsigned int type, unsigned int *mhz, bool highest) {
    struct record gpu;
    if (!mhz || type > CLOCK_TYPE_VIDEO) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *mhz = clock_of(&gpu, type, highest);
    return result;
}

EXPORT int nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz) {
    return give_clock(device, type, mhz, false);
}

EXPORT int nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz) {
    return give_clock(device, type, mhz, true);
}

EXPORT int nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count,
                                              unsigned int *mhz) {
    struct record gpu;
    if (!count) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    unsigned int room = *count;
    *count = 1;
    if (!mhz || room < 1) return INSUFFICIENT_SIZE;
    mhz[0] = gpu.board.memory_clock_mhz;
    return OK;
}

EXPORT int nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_mhz,
                                                unsigned int *count, unsigned int *mhz) {
    struct record gpu;
    if (!count) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    const struct board *board = &gpu.board;
    if (memory_mhz != board->memory_clock_mhz) return NOT_FOUND;
    unsigned int room = *count;
    *count = (board->clock_max_mhz - board->clock_min_mhz) / board->clock_step_mhz + 1;
    if (!mhz || room < *count) return INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; i++)
        mhz[i] = board->clock_max_mhz - i * board->clock_step_mhz;
    return OK;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    struct record gpu;
    if (!reasons) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *reasons = event_reasons(&gpu);
    return result;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                     unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

EXPORT int nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device,
                                                    unsigned long long *reasons) {
    struct record gpu;
    if (!reasons) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *reasons = 0x1ef; /* every bit but sync boost */
    return result;
}

/* Between 30 degrees idle and 75 at the board's default limit, without inertia. */
static int celsius(const struct record *gpu) {
    double share = (double)gpu->power_mw / gpu->board.default_mw;
    return 30 + (int)(45.0 * (share < 2.0 ? share : 2.0));
}

EXPORT int nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor,
                                    unsigned int *temperature) {
    struct record gpu;
    if (!temperature || sensor) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *temperature = (unsigned int)celsius(&gpu);
    return result;
}

EXPORT int nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    struct record gpu;
    if (!temperature || temperature->sensorType) return INVALID_ARGUMENT;
    if (temperature->version != STRUCT_VERSION(nvmlTemperature_t, 1))
        return ARGUMENT_VERSION_MISMATCH;
    int result = resolve_whole(device, &gpu);
    if (result == OK) temperature->temperature = celsius(&gpu);
    return result;
}

EXPORT int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    struct record gpu;
    if (!rates) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    if (gpu.flags & FLAG_MIG) return NOT_SUPPORTED;
    unsigned int load = effective_load_permille(&gpu);
    if (!load && gpu.draw_mw > (int64_t)gpu.board.idle_mw) load = 1000;
    rates->gpu = (load + 5) / 10;
    rates->memory = rates->gpu * 6 / 10;
    return OK;
}

static uint64_t memory_used(const struct record *gpu) {
    uint64_t used = gpu->board.memory_bytes / 128;
    for (uint32_t i = 0; i < gpu->processes; i++) used += gpu->process[i].memory_bytes;
    return used < gpu->board.memory_bytes ? used : gpu->board.memory_bytes;
}

EXPORT int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct record gpu;
    if (!memory) return INVALID_ARGUMENT;
    int result = resolve(device, &gpu);
    if (result) return result;
    memory->total = gpu.board.memory_bytes;
    memory->used = memory_used(&gpu);
    memory->free = memory->total - memory->used;
    return OK;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlMemory_t plain;
    if (!memory) return INVALID_ARGUMENT;
    if (memory->version != STRUCT_VERSION(nvmlMemory_v2_t, 2)) return ARGUMENT_VERSION_MISMATCH;
    int result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result) return result;
    memory->total = plain.total;
    memory->used = plain.used;
    memory->free = plain.free;
    memory->reserved = 0;
    return OK;
}

EXPORT int nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode) {
    struct record gpu;
    if (!mode) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result == OK) *mode = gpu.flags & FLAG_PERSISTENCE ? 1 : 0;
    return result;
}

static int set_persistence(struct record *gpu, void *argument) {
    unsigned int mode = *(const unsigned int *)argument;
    if (mode > 1) return INVALID_ARGUMENT;
    gpu->flags &= ~(uint32_t)FLAG_PERSISTENCE;
    if (mode) gpu->flags |= FLAG_PERSISTENCE;
    return OK;
}

EXPORT int nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode) {
    return change_device(device, set_persistence, &mode);
}

EXPORT int nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(
    nvmlDevice_t device, nvmlWorkloadPowerProfileCurrentProfiles_v1_t *profiles) {
    struct record gpu;
    if (!profiles) return INVALID_ARGUMENT;
    if (profiles->version != STRUCT_VERSION(nvmlWorkloadPowerProfileCurrentProfiles_v1_t, 1))
        return ARGUMENT_VERSION_MISMATCH;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    bool active = gpu.flags & FLAG_POWER_PROFILE;
    if (!active && !gpu.board.power_profiles) return NOT_SUPPORTED;
    memset(profiles->perf, 0, 3 * sizeof profiles->perf);
    profiles->perf[0] = 1; /* the board knows one: Max-P training */
    profiles->requested[0] = profiles->enforced[0] = active;
    return OK;
}

/* List the processes that are there: the declared ones until they end, and the owner. */
static unsigned int present(const struct record *gpu, struct process *list) {
    unsigned int count = 0;
    bool owner_listed = false;
    for (uint32_t i = 0; i < gpu->processes; i++) {
        const struct process *each = &gpu->process[i];
        if (each->start_ticks && started_ticks(each->pid) != each->start_ticks) continue;
        owner_listed |= each->pid == gpu->owner_pid;
        list[count++] = *each;
    }
    if (gpu->owner_pid && !owner_listed)
        list[count++] = (struct process){.pid = gpu->owner_pid,
                                         .utilization = gpu->owner_load_permille / 10,
                                         .memory_bytes = gpu->board.memory_bytes / 2};
    return count;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                   nvmlProcessInfo_t *infos) {
    struct record gpu;
    struct process list[PROCESSES_MAX + 1];
    if (!count) return INVALID_ARGUMENT;
    int result = resolve(device, &gpu);
    if (result) return result;
    unsigned int room = *count;
    *count = present(&gpu, list);
    if (*count > room || (*count && !infos)) return INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; i++) {
        unsigned int instance = gpu.flags & FLAG_MIG ? i % MIG_INSTANCES : UINT32_MAX;
        infos[i] = (nvmlProcessInfo_t){list[i].pid, list[i].memory_bytes, instance, instance};
    }
    return OK;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                   nvmlProcessInfo_t *infos) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

EXPORT int nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                           nvmlProcessUtilizationSample_t *samples,
                                           unsigned int *count, unsigned long long since_us) {
    struct record gpu;
    struct process list[PROCESSES_MAX + 1];
    if (!count) return INVALID_ARGUMENT;
    int result = resolve_whole(device, &gpu);
    if (result) return result;
    if (gpu.flags & FLAG_MIG) return NOT_SUPPORTED;
    struct sensed now = sensed_now(&gpu);
    unsigned int room = *count;
    *count = present(&gpu, list);
    if (!*count || now.wall_us <= since_us) return NOT_FOUND;
    if (*count > room || !samples) return INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; i++) {
        unsigned int busy = list[i].utilization;
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = list[i].pid, .timeStamp = now.wall_us, .smUtil = busy, .memUtil = busy * 6 / 10};
    }
    return OK;
}
