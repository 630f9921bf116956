/* step_events.c -- steps as an event file that TensorBoard reads: events.out.tfevents.<seconds>.<host>.
 *
 * A file is a row of records, each
 *   length (8 bytes), masked CRC of these 8, the record, masked CRC of it;  numbers are little-endian,
 * and each record a message Event of protocol buffers, of which these fields are used:
 *   Event     1 wall_time: double   2 step: varint   3 file_version: text   5 summary   7 session_log
 *   Summary   1 value, repeated;  Value: 1 tag: text, 2 simple_value: float
 *   SessionLog  1 status: varint, 1 is START: what earlier files have of this step and later ones is void */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/append.h"
#include "base/arena.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/textbuf.h"
#include "train/step_sink.h"

typedef struct {
  StepSink sink;
  AppendFile file;
} EventSink;

enum { NAMES_TRIED = 1000 };
typedef enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } Wire;

/* ---- protocol buffers ----------------------------------------------------------------------------------- */

static void put_little(TextBuf *b, uint64_t x, int bytes) {
  char little[8];
  for (int i = 0; i < bytes; i++) little[i] = (char)(x >> 8 * i & 0xff);
  text_write(b, little, (size_t)bytes);
}

static void put_varint(TextBuf *b, uint64_t x) {
  for (; x >= 0x80; x >>= 7) put_little(b, (x & 0x7f) | 0x80, 1);
  put_little(b, x, 1);
}

static void put_field(TextBuf *b, int field, Wire wire) { put_varint(b, (uint64_t)field << 3 | (uint64_t)wire); }

static void put_bytes(TextBuf *b, int field, const void *data, size_t n) {
  put_field(b, field, WIRE_BYTES);
  put_varint(b, n);
  if (n) text_write(b, data, n);
}

static void put_double(TextBuf *b, int field, double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  put_field(b, field, WIRE_64);
  put_little(b, bits, 8);
}

static void put_float(TextBuf *b, int field, float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  put_field(b, field, WIRE_32);
  put_little(b, bits, 4);
}

static void put_number(TextBuf *b, int field, int64_t x) {
  put_field(b, field, WIRE_VARINT);
  put_varint(b, (uint64_t)x);
}

/* ---- records --------------------------------------------------------------------------------------------- */

static uint32_t masked_crc(const void *data, size_t n) {
  uint32_t crc = crc32c(data, n);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static Status write_record(EventSink *e, const TextBuf *event) {
  TextBuf b = {0};
  put_little(&b, event->len, 8);
  put_little(&b, b.failed ? 0 : masked_crc(b.text, 8), 4);
  text_write(&b, event->text ? event->text : "", event->len);
  put_little(&b, masked_crc(event->text, event->len), 4);
  Status s = b.failed || event->failed ? fail_oom() : append_write(&e->file, b.text, b.len);
  text_free(&b);
  return s;
}

static void begin_event(TextBuf *b) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  put_double(b, 1, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
}

static void put_value(TextBuf *summary, const char *tag, double x) {
  TextBuf value = {0};
  put_bytes(&value, 1, tag, strlen(tag));
  put_float(&value, 2, (float)x);
  put_bytes(summary, 1, value.text, value.failed ? 0 : value.len);
  summary->failed |= value.failed;
  text_free(&value);
}

static void put_known(TextBuf *summary, const char *tag, double x) {
  if (x != 0) put_value(summary, tag, x);
}

static void put_summary(TextBuf *s, const StepRecord *r) {
  put_value(s, "train/loss", r->loss);
  if (!(r->grad_norm < 0)) put_value(s, "train/grad_norm", r->grad_norm);
  put_value(s, "train/lr", r->lr);
  put_known(s, "train/loss_scale", r->loss_scale);
  if (r->has_eval) put_value(s, "eval/loss", r->eval_loss);
  put_known(s, "speed/seconds", r->seconds);
  put_known(s, "speed/samples_per_s", r->samples_per_s);
  put_known(s, "speed/tokens_per_s", r->tokens_per_s);
  put_known(s, "speed/tflops", r->tflops);
  put_known(s, "speed/share_of_peak", r->share_of_peak);
  put_known(s, "speed/memory", (double)r->memory);
}

static Status write_event(StepSink *sink, const StepRecord *r) {
  TextBuf event = {0}, summary = {0};
  begin_event(&event);
  put_number(&event, 2, r->step);
  put_summary(&summary, r);
  put_bytes(&event, 5, summary.text, summary.failed ? 0 : summary.len);
  event.failed |= summary.failed;
  Status s = write_record((EventSink *)sink, &event);
  text_free(&summary);
  text_free(&event);
  return s;
}

static Status write_head(EventSink *e, bool resumed, int64_t first) {
  static const char version[] = "brain.Event:2", start[] = {1 << 3 | WIRE_VARINT, 1};
  TextBuf event = {0};
  begin_event(&event);
  put_bytes(&event, 3, version, sizeof version - 1);
  Status s = write_record(e, &event);
  text_free(&event);
  if (s || !resumed) return s;
  begin_event(&event);
  put_number(&event, 2, first);
  put_bytes(&event, 7, start, sizeof start);
  s = write_record(e, &event);
  text_free(&event);
  return s;
}

/* ---- opening --------------------------------------------------------------------------------------------- */

static void close_events(StepSink *sink) {
  EventSink *e = (EventSink *)sink;
  append_close(&e->file);
  free(e);
}

/* Two runs may begin in the same second. */
static Status open_file(EventSink *e, const char *folder, Arena *arena) {
  char host[256];
  if (gethostname(host, sizeof host)) snprintf(host, sizeof host, "localhost");
  host[sizeof host - 1] = 0;
  long long now = (long long)time(NULL);
  bool taken = true;
  for (int i = 0; i < NAMES_TRIED && taken; i++) {
    const char *path = i ? arena_printf(arena, "%s/events.out.tfevents.%010lld.%s.%d", folder, now, host, i)
                         : arena_printf(arena, "%s/events.out.tfevents.%010lld.%s", folder, now, host);
    if (!path) return fail_oom();
    TRY(append_new(&e->file, path, &taken));
  }
  return taken ? fail(ERR_FAIL, "'%s' has %d event files of this second already", folder, NAMES_TRIED) : OK;
}

Status step_sink_events(const char *folder, bool resumed, int64_t first, StepSink **out) {
  EventSink *e;
  Arena arena = {0};
  TRY(file_make_folder(folder));
  TRY_NEW(e, calloc(1, sizeof *e));
  e->sink = (StepSink){.write = write_event, .close = close_events};
  Status s = open_file(e, folder, &arena);
  arena_free(&arena);
  if (!s) s = write_head(e, resumed, first);
  if (s) close_events(&e->sink);
  else *out = &e->sink;
  return s;
}
