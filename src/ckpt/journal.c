/* journal.c -- see journal.h. */
#include "ckpt/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/status.h"
#include "tessera.h"

/* ---- the key ------------------------------------------------------------------------------------------------- */

typedef struct {
  XXH3_state_t *state;
} Hash;

static void add_bytes(Hash *h, const void *data, size_t size) { XXH3_128bits_update(h->state, data, size); }
static void add_text(Hash *h, const char *text) { add_bytes(h, text ? text : "", strlen(text ? text : "") + 1); }
static void add_number(Hash *h, int64_t n) { add_bytes(h, &n, sizeof n); }

/* A text that is another after every start of the system. */
static bool add_boot(Hash *h) {
  char id[64];
  FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
  size_t n = f ? fread(id, 1, sizeof id, f) : 0;
  if (f) fclose(f);
  add_bytes(h, id, n);
  return n >= 32;
}

static bool add_source(Hash *h, const Source *s) {
  add_text(h, s->format->name);
  for (int i = 0; i < s->files; i++) {
    struct stat st;
    const FileMap *map = s->file[i].map;
    if (!file_map_is_mapped(map) || stat(map->path, &st)) return false;
    const int64_t facts[] = {(int64_t)st.st_dev, (int64_t)st.st_ino, (int64_t)st.st_size,
                             (int64_t)st.st_mtim.tv_sec, (int64_t)st.st_mtim.tv_nsec};
    add_bytes(h, facts, sizeof facts);
  }
  return true;
}

static void add_tensor(Hash *h, const Derived *d, const DerivedTensor *t) {
  add_text(h, t->name);
  for (int i = 0; i < d->sources; i++) add_text(h, t->part[i]->name);
  add_number(h, (int64_t)t->dtype);
  add_bytes(h, t->size, (size_t)t->ndim * sizeof *t->size);
}

static void add_box(Hash *h, const WriteBox *b) {
  const int64_t facts[] = {b->file, b->tensor, (int64_t)b->at, (int64_t)b->bytes};
  add_bytes(h, facts, sizeof facts);
  add_bytes(h, b->offset, sizeof b->offset);
  add_bytes(h, b->size, sizeof b->size);
  if (b->raw) add_bytes(h, b->raw, (size_t)b->bytes);
}

static void add_file(Hash *h, const WriteFile *f) {
  add_text(h, f->name);
  add_number(h, (int64_t)f->bytes);
  add_bytes(h, f->head, f->head_bytes);
}

static bool add_all(Hash *h, const Writing *w) {
  bool known = add_boot(h);
  add_text(h, TESS_VERSION);
  add_text(h, w->how->format->name);
  for (int i = 0; i < w->d->sources; i++) known &= add_source(h, w->d->source[i]);
  for (int i = 0; i < w->d->n; i++) add_tensor(h, w->d, &w->d->v[i]);
  for (int i = 0; i < w->boxes; i++) add_box(h, &w->box[i]);
  for (int i = 0; i < w->files; i++) add_file(h, &w->file[i]);
  return known;
}

Status journal_key(const Writing *w, JournalKey *out, bool *resumable) {
  Hash h;
  TRY_NEW(h.state, XXH3_createState());
  XXH3_128bits_reset(h.state);
  *resumable = add_all(&h, w);
  XXH128_canonical_t key;
  XXH128_canonicalFromHash(&key, XXH3_128bits_digest(h.state));
  memcpy(out->bytes, key.digest, sizeof out->bytes);
  XXH3_freeState(h.state);
  return OK;
}

/* ---- records ------------------------------------------------------------------------------------------------- */

typedef struct {
  uint64_t hash;
  uint32_t box, crc;
  uint64_t check; /* of the above, and of the key */
} Record;

static uint64_t check_of(const Record *r, const JournalKey *key) {
  return XXH3_64bits_withSeed(r, offsetof(Record, check), XXH3_64bits(key->bytes, sizeof key->bytes));
}

static Status cannot_write(void) { return fail(ERR_FAIL, "cannot write the journal: %s", strerror(errno)); }

static Status put(const Journal *j, const void *data, size_t size) {
  ssize_t n;
  do n = write(j->fd, data, size);
  while (n < 0 && errno == EINTR);
  if (n == (ssize_t)size) return OK;
  if (n >= 0) errno = ENOSPC;
  return cannot_write();
}

/* Leaves the end of the file behind the last record that can be believed. */
static Status read_records(const Journal *j, Writing *w, int64_t *bytes) {
  off_t end = (off_t)sizeof j->key;
  Record r;
  while (pread(j->fd, &r, sizeof r, end) == (ssize_t)sizeof r && r.check == check_of(&r, &j->key) &&
         r.box < (uint32_t)w->boxes) {
    WriteBox *b = &w->box[r.box];
    if (!b->written) *bytes += (int64_t)b->bytes;
    b->written = true, b->hash = r.hash, b->crc = r.crc;
    end += (off_t)sizeof r;
  }
  return ftruncate(j->fd, end) ? cannot_write() : OK;
}

Status journal_open(Journal *j, Writing *w, const JournalKey *key, bool again, int64_t *bytes) {
  const char *path;
  *bytes = 0;
  *j = (Journal){.fd = -1, .key = *key};
  TRY(folder_out_path(&w->out, JOURNAL_NAME, &path));
  j->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (j->fd < 0) return cannot_write();
  return again ? read_records(j, w, bytes) : put(j, key->bytes, sizeof key->bytes);
}

Status journal_add(const Journal *j, const Writing *w, const WriteBox *b) {
  if (j->fd < 0) return OK;
  Record r = {.hash = b->hash, .box = (uint32_t)(b - w->box), .crc = b->crc};
  r.check = check_of(&r, &j->key);
  return put(j, &r, sizeof r);
}

Status journal_end(Journal *j, Writing *w) {
  const char *path;
  if (j->fd < 0) return OK;
  journal_close(j);
  TRY(folder_out_path(&w->out, JOURNAL_NAME, &path));
  return unlink(path) ? cannot_write() : OK;
}

void journal_close(Journal *j) {
  if (j->fd >= 0) close(j->fd);
  j->fd = -1;
}
