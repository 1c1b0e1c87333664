/* Drives the physics of a fake GPU through a given script of moments, without a clock or a file. */
#include "device.h"

#include <string.h>

enum { LOOK, LOAD, DRAW, LIMIT, LOCK, ZERO, RELOAD };

struct event {
    uint64_t at_ns;
    int64_t kind, value;
};

struct answer {
    uint64_t drawn_mj, drawn_pj, counter_mj, capped_ns;
    uint32_t power_mw, shown_mw, average_mw, clock_mhz, capped, reasons;
};

static void happen(struct record *gpu, const struct event *event) {
    switch (event->kind) {
        case LOAD: gpu->load_permille = (uint32_t)event->value; break;
        case DRAW: gpu->draw_mw = event->value; break;
        case LIMIT: gpu->requested_mw = (uint32_t)event->value; break;
        case LOCK: gpu->lock_max_mhz = (uint32_t)event->value; break;
        case ZERO: zero_counter(gpu); break;
        case RELOAD: reload(gpu); break;
        default: return;
    }
    solve(gpu);
}

__attribute__((visibility("default"))) void probe(const struct board *board, const uint32_t sensor[3],
                                                  uint32_t count, const struct event *events,
                                                  struct answer *answers) {
    struct record gpu;
    memset(&gpu, 0, sizeof gpu);
    gpu.board = *board;
    gpu.draw_mw = -1;
    gpu.update_ms = sensor[0];
    gpu.period_ms = sensor[1];
    gpu.window_ms = sensor[2];
    reload(&gpu);
    solve(&gpu);
    for (uint32_t i = 0; i < count; i++) {
        advance(&gpu, events[i].at_ns);
        happen(&gpu, &events[i]);
        struct sensed shown = sense(&gpu, gpu.updated_ns, 0);
        answers[i] = (struct answer){gpu.drawn.mj,     gpu.drawn.carry,  shown.counter_mj,
                                     gpu.capped_ns,    gpu.power_mw,     shown.power_mw,
                                     shown.average_mw, gpu.clock_mhz,    gpu.capped,
                                     (uint32_t)event_reasons(&gpu)};
    }
}
