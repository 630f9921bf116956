/* bell.h -- how one thread sleeps until others have something for it.
 *
 * One thread sleeps on a bell, any thread may ring it:
 *
 *     for (;;) {
 *       uint32_t heard = bell_listen(b);        anything that happens from here on rings
 *       if (what I wait for is there) break;
 *       bell_sleep(b, heard, seconds);
 *     }
 *     bell_rise(b);
 *
 * and others: make it so (a sequentially consistent store), then bell_ring(b).  Ringing
 * for a thread that is awake is one addition.
 */
#ifndef TESS_COMM_BELL_H
#define TESS_COMM_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#ifndef __linux__
#include <pthread.h>
#endif

typedef struct {
  _Alignas(64) _Atomic uint32_t rings;
  _Atomic uint32_t listening;
#ifndef __linux__
  pthread_mutex_t lock;
  pthread_cond_t rung;
#endif
} Bell;

bool bell_init(Bell *b);
void bell_destroy(Bell *b);
uint32_t bell_listen(Bell *b);
/* False if the time is up without a ring; seconds <= 0: for ever. */
bool bell_sleep(Bell *b, uint32_t heard, double seconds);
void bell_rise(Bell *b);
void bell_ring(Bell *b);

#endif
