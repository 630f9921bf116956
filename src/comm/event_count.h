/* event_count.h -- an event count: how one thread sleeps until others have something for it.
 *
 * One thread waits on an event count, any thread may notify it:
 *
 *     for (;;) {
 *       uint32_t seen = event_prepare(b);        anything that happens from here on ends the wait
 *       if (what I wait for is there) break;
 *       event_wait(b, seen, seconds);
 *     }
 *     event_end_wait(b);
 *
 * and others: make it so (a sequentially consistent store), then event_notify(b).
 * Notifying a thread that is awake is one addition.
 */
#ifndef TESS_COMM_EVENT_COUNT_H
#define TESS_COMM_EVENT_COUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#ifndef __linux__
#include <pthread.h>
#endif

typedef struct {
  _Alignas(64) _Atomic uint32_t count;
  _Atomic uint32_t waiting;
#ifndef __linux__
  pthread_mutex_t lock;
  pthread_cond_t notified;
#endif
} EventCount;

bool event_init(EventCount *b);
void event_destroy(EventCount *b);
uint32_t event_prepare(EventCount *b);
/* False if the time is up without a notification; seconds <= 0: for ever. */
bool event_wait(EventCount *b, uint32_t seen, double seconds);
void event_end_wait(EventCount *b);
void event_notify(EventCount *b);

#endif
