/* The state file: reading without a lock, changing under one, and who is still alive. */
#define _GNU_SOURCE
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(struct record) <= RECORD_BYTES, "a record fits its place in the file");
_Static_assert(sizeof(struct record) % 8 == 0, "a record is whole words");
_Static_assert(HEADER_BYTES % RECORD_BYTES == 0, "no record crosses a page");

static const char MAGIC[8] = {'W', 'M', 'F', 'N', 'V', 'M', 'L', '\0'};
static const uint64_t SIGN_OF_LIFE_NS = 100000000;
static const uint64_t LOCK_DEADLINE_NS = 500000000; /* a lock is held for microseconds */
static const uint64_t MOMENT_NS = 200000;
static const uint64_t HANG_MAX_NS = 3600000000000;
static const int TORN_READS_MAX = 10;

static uint64_t clock_ns(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

uint64_t wall_us(void) { return clock_ns(CLOCK_REALTIME) / 1000; }

static void pause_ns(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

/* FNV-1a over words of eight bytes. */
uint64_t fnv(const void *bytes, size_t count) {
    uint64_t sum = 0xcbf29ce484222325u, word;
    for (size_t at = 0; at + sizeof word <= count; at += sizeof word) {
        memcpy(&word, (const char *)bytes + at, sizeof word);
        sum = (sum ^ word) * 0x100000001b3u;
    }
    return sum;
}

uint64_t boot_number(void) {
    char text[64] = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file) return 0;
    size_t count = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    return count ? fnv(text, sizeof text) : 0;
}

/* Give when a process started, in clock ticks; 0 when it is gone or a zombie. */
uint64_t started_ticks(uint32_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t count = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[count] = '\0';
    char *rest = strrchr(text, ')'); /* the name before it may hold anything */
    unsigned long long start = 0;
    char state = 'Z';
    if (!rest) return 0;
    if (sscanf(rest + 1,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &state, &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start;
}

static uint64_t checked(const void *sealed, size_t bytes) {
    return fnv((const char *)sealed + sizeof(uint64_t), bytes - sizeof(uint64_t));
}

void seal(struct record *gpu) { gpu->check = checked(gpu, sizeof *gpu); }

void seal_header(struct header *header) {
    memcpy(header->magic, MAGIC, sizeof MAGIC);
    header->version = STATE_VERSION;
    header->record_bytes = RECORD_BYTES;
    header->check = checked(header, sizeof *header);
}

/* Say whether a text ends within its place and can be printed. */
static bool fits(const char *text, size_t count) {
    for (size_t at = 0; at < count; at++) {
        if (!text[at]) return true;
        if (text[at] < ' ' || text[at] > '~') return false;
    }
    return false;
}

/* Say whether a record may be worked with: nothing in it divides by zero, runs on for ever or
 * reaches beyond its arrays, even if somebody forged the checksum. */
static bool sound(const struct record *gpu, uint32_t index) {
    const struct board *board = &gpu->board;
    if (gpu->check != checked(gpu, sizeof *gpu) || gpu->index != index) return false;
    if (!fits(gpu->uuid, sizeof gpu->uuid) || !fits(board->name, sizeof board->name)) return false;
    for (int i = 0; i < MIG_INSTANCES; i++)
        if (!fits(gpu->mig_uuid[i], sizeof gpu->mig_uuid[i])) return false;
    if (!board->clock_step_mhz || board->clock_step_mhz > board->clock_max_mhz ||
        !board->clock_min_mhz || board->clock_min_mhz > board->clock_max_mhz ||
        board->clock_max_mhz > 100000 || board->voltage_floor_permille > 1000)
        return false;
    if (!board->default_mw || board->default_mw > POWER_MAX_MW || gpu->power_mw > POWER_MAX_MW ||
        gpu->load_permille > 1000 || gpu->owner_load_permille > 1000)
        return false;
    if (!gpu->window_ms || gpu->window_ms > gpu->period_ms || gpu->period_ms > 60000 ||
        gpu->update_ms > 60000)
        return false;
    return gpu->processes <= PROCESSES_MAX && gpu->changes <= CHANGES_MAX &&
           gpu->hang_ns <= HANG_MAX_NS;
}

static off_t place(uint32_t index) { return HEADER_BYTES + (off_t)index * RECORD_BYTES; }

/* Read one record once. */
static int fetch_once(int descriptor, uint32_t index, struct record *gpu) {
    ssize_t count = pread(descriptor, gpu, sizeof *gpu, place(index));
    if (count < 0) return OPERATING_SYSTEM;
    return count == (ssize_t)sizeof *gpu && sound(gpu, index) ? OK : CORRUPTED;
}

/* Let a GPU whose owner died turn idle at its last sign of life. No reading that was given out can
 * be later than that by more than SIGN_OF_LIFE_NS, so the counter never goes back. */
static void settle_owner(struct record *gpu, uint64_t now_ns) {
    if (!gpu->owner_pid) return;
    if (started_ticks(gpu->owner_pid) == gpu->owner_start_ticks) {
        gpu->owner_seen_ns = now_ns;
        return;
    }
    uint64_t end = gpu->owner_seen_ns + SIGN_OF_LIFE_NS;
    advance(gpu, end < now_ns ? end : now_ns);
    gpu->owner_pid = 0;
    gpu->owner_load_permille = 0;
    solve(gpu);
}

/* Open the file and take its lock, or give up: a holder that was stopped must not stop us. */
static int locked_open(const char *path, int access) {
    int descriptor = open(path, access | O_CLOEXEC);
    uint64_t deadline = monotonic_ns() + LOCK_DEADLINE_NS;
    if (descriptor < 0) return errno == EACCES || errno == EROFS ? -NO_PERMISSION : -OPERATING_SYSTEM;
    while (flock(descriptor, LOCK_EX | LOCK_NB)) {
        bool waiting = errno == EWOULDBLOCK || errno == EINTR;
        if (waiting && monotonic_ns() < deadline) {
            pause_ns(MOMENT_NS);
            continue;
        }
        close(descriptor);
        return waiting ? -TIMED_OUT : -OPERATING_SYSTEM;
    }
    return descriptor;
}

/* Read one record without the lock. Who meets a writer reads again; the lock decides in the end
 * whether bytes that do not fit were just being written, or are damaged. */
static int fetch(struct state *state, uint32_t index, struct record *gpu) {
    for (int tries = 0; tries < TORN_READS_MAX; tries++) {
        int result = fetch_once(state->descriptor, index, gpu);
        if (result != CORRUPTED) return result;
        sched_yield();
    }
    int descriptor = locked_open(state->path, O_RDONLY);
    if (descriptor < 0) return -descriptor;
    int result = fetch_once(descriptor, index, gpu);
    close(descriptor);
    return result;
}

/* Advance a GPU to now, change it and write it back: one step to everybody else. */
int alter(struct state *state, uint32_t index, change_fn change, void *argument) {
    struct record gpu;
    if (index >= state->header.gpus) return INVALID_ARGUMENT;
    int descriptor = locked_open(state->path, O_RDWR);
    if (descriptor < 0) return -descriptor;
    int result = fetch_once(descriptor, index, &gpu);
    if (result == OK) {
        uint64_t now = monotonic_ns();
        settle_owner(&gpu, now);
        advance(&gpu, now);
        result = change ? change(&gpu, argument) : OK;
    }
    if (result == OK) {
        solve(&gpu);
        seal(&gpu);
        if (pwrite(descriptor, &gpu, sizeof gpu, place(index)) != (ssize_t)sizeof gpu)
            result = OPERATING_SYSTEM;
    }
    close(descriptor); /* and with it the lock */
    return result;
}

/* Read a GPU as it is now, whatever its faults. */
int peek(struct state *state, uint32_t index, struct record *gpu) {
    if (index >= state->header.gpus) return INVALID_ARGUMENT;
    int result = fetch(state, index, gpu);
    if (result) return result;
    uint64_t now = monotonic_ns();
    if (gpu->owner_pid) {
        bool alive = started_ticks(gpu->owner_pid) == gpu->owner_start_ticks;
        if (!alive || now > gpu->owner_seen_ns + SIGN_OF_LIFE_NS) {
            if (alter(state, index, NULL, NULL) == OK)
                result = fetch(state, index, gpu);
            if (result) return result;
            if (!alive) settle_owner(gpu, now); /* where we may not write */
        }
    }
    advance(gpu, now);
    return OK;
}

/* Read a GPU as a driver call does: it may hang, and the GPU may have fallen off the bus. */
int look(struct state *state, uint32_t index, struct record *gpu) {
    uint64_t start = monotonic_ns(), slice = 10000000;
    int result = peek(state, index, gpu);
    while (result == OK && gpu->hang_ns) {
        uint64_t waited = monotonic_ns() - start;
        if (waited >= gpu->hang_ns) break;
        pause_ns(gpu->hang_ns - waited < slice ? gpu->hang_ns - waited : slice);
        result = peek(state, index, gpu);
    }
    if (result) return result;
    return gpu->flags & FLAG_LOST ? GPU_IS_LOST : OK;
}

static int header_once(int descriptor, struct header *header) {
    if (pread(descriptor, header, sizeof *header, 0) != (ssize_t)sizeof *header ||
        memcmp(header->magic, MAGIC, sizeof MAGIC) != 0)
        return CORRUPTED;
    if (header->version != STATE_VERSION || header->record_bytes != RECORD_BYTES)
        return VERSION_MISMATCH;
    bool whole = header->check == checked(header, sizeof *header) && header->gpus <= GPUS_MAX;
    return whole && fits(header->driver, sizeof header->driver) ? OK : CORRUPTED;
}

/* Read the header again: what is permitted may have changed. Like `fetch`. */
int state_header(struct state *state) {
    struct header header;
    int result = CORRUPTED;
    for (int tries = 0; tries < TORN_READS_MAX && result == CORRUPTED; tries++) {
        if (tries) sched_yield();
        result = header_once(state->descriptor, &header);
    }
    if (result == CORRUPTED) {
        int descriptor = locked_open(state->path, O_RDONLY);
        if (descriptor < 0) return -descriptor;
        result = header_once(descriptor, &header);
        close(descriptor);
    }
    if (result == OK) state->header = header;
    return result;
}

int state_permit(struct state *state, bool permitted) {
    int descriptor = locked_open(state->path, O_RDWR);
    if (descriptor < 0) return -descriptor;
    struct header header;
    int result = header_once(descriptor, &header);
    if (result == OK) {
        header.permitted = permitted;
        seal_header(&header);
        if (pwrite(descriptor, &header, sizeof header, 0) != (ssize_t)sizeof header)
            result = OPERATING_SYSTEM;
        else
            state->header = header;
    }
    close(descriptor);
    return result;
}

/* Start a GPU's clock anew after the machine booted: what came before was seen by nobody, and the
 * driver was loaded anew too. */
static int rebase(struct state *state, uint32_t index) {
    struct record gpu;
    int descriptor = locked_open(state->path, O_RDWR);
    if (descriptor < 0) return -descriptor;
    int result = fetch_once(descriptor, index, &gpu);
    if (result == OK && gpu.boot != boot_number()) {
        gpu.boot = boot_number();
        gpu.updated_ns = monotonic_ns();
        gpu.changes = gpu.processes = gpu.owner_pid = 0;
        gpu.load_permille = 0;
        gpu.draw_mw = -1;
        reload(&gpu);
        solve(&gpu);
        seal(&gpu);
        if (pwrite(descriptor, &gpu, sizeof gpu, place(index)) != (ssize_t)sizeof gpu)
            result = OPERATING_SYSTEM;
    }
    close(descriptor);
    return result;
}

/* Open a state file: no file, a damaged header and another version are told apart. */
int state_open(struct state *state, const char *path) {
    struct record gpu;
    if (strlen(path) >= sizeof state->path) return INVALID_ARGUMENT;
    strcpy(state->path, path);
    state->descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (state->descriptor < 0) return DRIVER_NOT_LOADED;
    int result = state_header(state);
    uint64_t boot = boot_number();
    for (uint32_t i = 0; result == OK && i < state->header.gpus; i++) {
        /* A damaged record fails the calls on its own GPU, not the whole library. */
        if (fetch(state, i, &gpu) == OK && gpu.boot != boot) result = rebase(state, i);
    }
    if (result) state_close(state);
    return result;
}

void state_close(struct state *state) {
    if (state->descriptor >= 0) close(state->descriptor);
    state->descriptor = -1;
}
