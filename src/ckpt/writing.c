/* writing.c -- the engine; see writing.h. */
#include "ckpt/writing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>

#include "base/blocks.h"
#include "base/direct.h"
#include "base/parallel.h"
#include "ckpt/journal.h"
#include "ckpt/windows.h"
#include "ckpt/write_formats.h"

enum { LEAST_WINDOW = 64 << 10, MOST_WINDOW = 8 << 20, SHARES = 4, PIECE = 128 << 10, FILES_AT_A_TIME = 64 };

const WriteFormat write_formats[] = {
    {.name = "tessera",
     .what = "a save of tessera",
     .folder = true,
     .names = NAMES_OF_RUN,
     .plan = plan_run,
     .finish = finish_run},
    {.name = "hf",
     .what = "a folder of Hugging Face",
     .folder = true,
     .names = NAMES_OF_MODEL,
     .plan = plan_hf,
     .finish = finish_hf},
    {.name = "safetensors", .what = "a .safetensors file", .names = NAMES_OF_MODEL, .plan = plan_safetensors},
    {.name = "dcp",
     .what = "a distributed checkpoint of PyTorch",
     .folder = true,
     .crc = true,
     .plan = plan_dcp,
     .around = around_dcp,
     .finish = finish_dcp},
    {.name = "pt2", .what = "an exported program with these weights", .names = NAMES_OF_MODEL, .write = write_pt2},
};
const int write_format_count = (int)(sizeof write_formats / sizeof *write_formats);

const WriteFormat *write_format_find(const char *name) {
  for (int i = 0; i < write_format_count; i++)
    if (!strcmp(name, write_formats[i].name)) return &write_formats[i];
  return NULL;
}

/* ---- files that are open ------------------------------------------------------------------------------------ */

typedef struct {
  FileOut out;
  bool open, done;
  atomic_int left; /* boxes */
} OpenFile;

/* Boxes of one tensor have turns one after another; the first of these turns counts them. */
typedef struct {
  WriteBox *box;
  int first;       /* turn */
  atomic_int left; /* boxes */
} Turn;

typedef struct {
  OpenFile *file;
  Journal journal;
  pthread_mutex_t lock; /* of opening and of progress */
  Turn *turn;           /* of the boxes that are to be written */
  int turns;
  atomic_int next;
  atomic_bool failed;
  Status first;
  size_t window;
} Engine;

/* The one file of a format that is no folder has this name in the folder where it is made. */
static const char *name_of(const Writing *w, int file) {
  return w->how->format->folder ? w->file[file].name : "result";
}

static unsigned flags_of(const Writing *w) {
  return (w->how->sync ? FILE_SYNC : 0u) | (w->how->force || w->how->format->folder ? FILE_OVERWRITE : 0u);
}

static Status open_file(Writing *w, int i) {
  Engine *e = w->inside;
  OpenFile *f = &e->file[i];
  Status s = OK;
  pthread_mutex_lock(&e->lock);
  if (!f->open) {
    const char *path;
    s = folder_out_path(&w->out, name_of(w, i), &path);
    if (!s) s = file_out_open(&f->out, path, flags_of(w) | FILE_GO_ON);
    f->open = !s;
  }
  pthread_mutex_unlock(&e->lock);
  return s;
}

static Status close_file(Writing *w, int i) {
  Engine *e = w->inside;
  OpenFile *f = &e->file[i];
  if (w->file[i].head_bytes) TRY(file_out_write_at(&f->out, 0, w->file[i].head, w->file[i].head_bytes));
  f->done = true;
  return file_out_commit(&f->out);
}

Status writing_put(Writing *w, int file, uint64_t at, const void *data, size_t size) {
  Engine *e = w->inside;
  return file_out_write_at(&e->file[file].out, at, data, size);
}

Status writing_add_text(Writing *w, const char *name, const void *data, size_t size) {
  const char *path;
  TRY(folder_out_path(&w->out, name, &path));
  return file_write_all(path, data, size, flags_of(w));
}

/* ---- boxes -------------------------------------------------------------------------------------------------- */

typedef struct {
  Writing *w;
  WriteBox *b;
  XXH3_state_t *hash;
  uint64_t done; /* bytes of the box */
  void *buffer;  /* a window; made when first needed */
  int worker;
} BoxJob;

static void hash_bytes(BoxJob *j, const void *data, size_t size) {
  XXH3_64bits_update(j->hash, data, size);
  if (j->w->how->format->crc) j->b->crc = (uint32_t)crc32_z(j->b->crc, data, size);
}

/* Bytes that were hashed. */
static Status put_bytes(BoxJob *j, const void *data, size_t size) {
  Engine *e = j->w->inside;
  TRY(writing_put(j->w, j->b->file, j->b->at + j->done, data, size));
  j->done += size;
  if (j->w->how->progress) {
    pthread_mutex_lock(&e->lock);
    progress_add(j->w->how->progress, (int64_t)size);
    pthread_mutex_unlock(&e->lock);
  }
  return atomic_load(&e->failed) ? fail(ERR_FAIL, "another part has failed") : OK;
}

/* Where a window is to lie so that its pages are written as they are (base/direct.h). */
static unsigned char *place_in_buffer(const BoxJob *j) {
  uintptr_t begin = ((uintptr_t)j->buffer + DIRECT_PAGE - 1) / DIRECT_PAGE * DIRECT_PAGE;
  return (unsigned char *)begin + (j->b->at + j->done) % DIRECT_PAGE;
}

/* Whether the disk would take pages of this memory as they are. */
static bool is_aligned(const BoxJob *j, const void *data) {
  return ((uintptr_t)data - (uintptr_t)(j->b->at + j->done)) % DIRECT_MEMORY == 0;
}

static Status need_buffer(BoxJob *j) {
  const Engine *e = j->w->inside;
  if (!j->buffer) TRY_NEW(j->buffer, block_alloc(e->window + 2 * DIRECT_PAGE));
  return OK;
}

/* Piece by piece, so that what was read for the hash is copied out of the cache. */
static void copy_hashed(BoxJob *j, unsigned char *to, const unsigned char *from, size_t bytes) {
  for (size_t at = 0, n; at < bytes; at += n) {
    n = bytes - at < PIECE ? bytes - at : PIECE;
    hash_bytes(j, from + at, n);
    memcpy(to + at, from + at, n);
  }
}

/* Past the page cache: as a whole, from where the disk can take it. */
static Status put_direct(BoxJob *j, const unsigned char *data, size_t bytes) {
  if (is_aligned(j, data)) hash_bytes(j, data, bytes);
  else {
    TRY(need_buffer(j));
    unsigned char *window = place_in_buffer(j);
    copy_hashed(j, window, data, bytes);
    data = window;
  }
  return put_bytes(j, data, bytes);
}

/* Through the page cache: piece by piece, as above. */
static Status put_plain(BoxJob *j, const unsigned char *data, size_t bytes) {
  for (size_t n; bytes; data += n, bytes -= n) {
    n = bytes < PIECE ? bytes : PIECE;
    hash_bytes(j, data, n);
    TRY(put_bytes(j, data, n));
  }
  return OK;
}

/* Large enough to go past the page cache, which is how this file is written? */
static bool goes_direct(const BoxJob *j, size_t bytes) {
  const Engine *e = j->w->inside;
  return bytes >= DIRECT_LEAST && e->file[j->b->file].out.direct >= 0;
}

static Status put_data(BoxJob *j, const void *data, size_t bytes) {
  return goes_direct(j, bytes) ? put_direct(j, data, bytes) : put_plain(j, data, bytes);
}

static Status put_part(void *arg, const int64_t *offset, const int64_t *size, size_t bytes) {
  BoxJob *j = arg;
  const Derived *d = j->w->d;
  const DerivedTensor *t = &d->v[j->b->tensor];
  const void *data = derived_span(d, t, offset, size);
  if (data) return put_data(j, data, bytes);
  TRY(need_buffer(j));
  void *window = place_in_buffer(j);
  TRY(derived_read(d, t, offset, size, window));
  return put_data(j, window, bytes);
}

/* Pages of a tensor stay until its last box is written, for columns share them: where those of all tensors that
 * threads may be at together fit the memory. */
static bool stays_mapped(const BoxJob *j) {
  const uint64_t tensors = (uint64_t)j->w->how->threads + 1;
  return (uint64_t)derived_bytes(&j->w->d->v[j->b->tensor]) <= j->w->how->memory / tensors;
}

static void forget_tensor(const BoxJob *j) {
  const int64_t begin[MAX_DIMS] = {0};
  if (j->b->tensor < 0 || !stays_mapped(j)) return;
  const DerivedTensor *t = &j->w->d->v[j->b->tensor];
  derived_forget(j->w->d, t, begin, t->size);
}

static Status put_window(void *arg, const int64_t *offset, const int64_t *size, size_t bytes) {
  BoxJob *j = arg;
  const Derived *d = j->w->d;
  const DerivedTensor *t = &d->v[j->b->tensor];
  derived_ahead(d, t, offset, size);
  const void *data = derived_span(d, t, offset, size);
  if (data) TRY(put_data(j, data, bytes));
  else { /* what is in memory is put together in pieces that fit a core's cache */
    const bool near = !goes_direct(j, bytes) && !derived_reads_directly(d, t, offset, size);
    TRY(each_window(t->ndim, offset, size, dtype_size(t->dtype), near ? PIECE : bytes, put_part, j));
  }
  if (data || !stays_mapped(j)) derived_forget(d, t, offset, size);
  return OK;
}

static Status put_box(BoxJob *j) {
  Writing *w = j->w;
  WriteBox *b = j->b;
  Engine *e = w->inside;
  TRY(open_file(w, b->file));
  XXH3_64bits_reset(j->hash);
  j->done = 0;
  b->crc = 0;
  if (b->tensor < 0) {
    hash_bytes(j, b->raw, (size_t)b->bytes);
    TRY(put_bytes(j, b->raw, (size_t)b->bytes));
  } else {
    const DerivedTensor *t = &w->d->v[b->tensor];
    derived_ahead(w->d, t, b->offset, b->size);
    TRY(each_window(t->ndim, b->offset, b->size, dtype_size(t->dtype), e->window, put_window, j));
  }
  b->hash = XXH3_64bits_digest(j->hash);
  if (w->how->format->around) TRY(w->how->format->around(w, b));
  TRY(journal_add(&e->journal, w, b));
  if (atomic_fetch_sub(&e->file[b->file].left, 1) > 1) return OK;
  return close_file(w, b->file); /* while others go on with the next */
}

static void keep_first(Engine *e, Status s) {
  if (!s) return;
  pthread_mutex_lock(&e->lock);
  if (e->first) status_free(s);
  else e->first = s;
  pthread_mutex_unlock(&e->lock);
  atomic_store(&e->failed, true);
}

static void put_some(void *arg, int64_t begin, int64_t end, int worker) {
  Writing *w = arg;
  Engine *e = w->inside;
  BoxJob j = {.w = w, .hash = XXH3_createState(), .worker = worker};
  (void)begin, (void)end;
  if (!j.hash) keep_first(e, fail_oom());
  for (int i; !atomic_load(&e->failed) && (i = atomic_fetch_add(&e->next, 1)) < e->turns;) {
    j.b = e->turn[i].box;
    keep_first(e, put_box(&j));
    if (atomic_fetch_sub(&e->turn[e->turn[i].first].left, 1) == 1) forget_tensor(&j);
  }
  if (j.buffer) block_free(j.buffer, e->window + 2 * DIRECT_PAGE);
  XXH3_freeState(j.hash);
}

/* ---- all of it
 * ---------------------------------------------------------------------------------------------------- */

static void set_window(const Writing *w, Engine *e) {
  uint64_t window = w->how->memory / (uint64_t)(w->how->threads * SHARES);
  /* The mean is computed in f64, of each element twice. */
  if (w->d->sources > 1) window /= 8;
  e->window = (size_t)(window < LEAST_WINDOW ? LEAST_WINDOW : window > MOST_WINDOW ? MOST_WINDOW : window);
}

static int by_turn(const void *a, const void *b) {
  const WriteBox *x = ((const Turn *)a)->box, *y = ((const Turn *)b)->box;
  const int first = x->file / FILES_AT_A_TIME, second = y->file / FILES_AT_A_TIME;
  if (first != second) return first - second;
  if (x->tensor != y->tensor) return x->tensor - y->tensor;
  return x < y ? -1 : x > y;
}

/* All boxes of a tensor one after another: the bytes of the sources are looked at once, and threads write to
 * different files where there are several, instead of waiting for each other at one. */
static Status set_turns(const Writing *w, Engine *e) {
  TRY_NEW(e->turn, calloc((size_t)w->boxes + 1, sizeof *e->turn));
  for (int i = 0; i < w->boxes; i++) {
    WriteBox *b = &w->box[i];
    if (b->written) continue;
    e->turn[e->turns++].box = b;
    atomic_fetch_add(&e->file[b->file].left, 1);
  }
  qsort(e->turn, (size_t)e->turns, sizeof *e->turn, by_turn);
  for (int i = 0; i < e->turns; i++) {
    const bool again = i && e->turn[i].box->tensor == e->turn[i - 1].box->tensor;
    e->turn[i].first = again ? e->turn[i - 1].first : i;
    atomic_fetch_add(&e->turn[e->turn[i].first].left, 1);
  }
  return OK;
}

static Status put_all(Writing *w) {
  Engine *e = w->inside;
  TRY(set_turns(w, e));
  parallel_for(w->how->threads, w->how->threads, 1, put_some, w);
  TRY(e->first);
  for (int i = 0; i < w->files; i++) { /* those without a box that was still to be written */
    if (e->file[i].done) continue;
    TRY(open_file(w, i));
    TRY(close_file(w, i));
  }
  return w->how->format->finish ? w->how->format->finish(w) : OK;
}

static Status open_work(Writing *w, Engine *e) {
  const WriteHow *how = w->how;
  JournalKey key;
  bool resumable, again;
  e->journal.fd = -1;
  TRY(journal_key(w, &key, &resumable));
  const FolderWork work = {.mark = JOURNAL_NAME,
                           .bytes = key.bytes,
                           .size = resumable ? sizeof key.bytes : 0,
                           .file = !how->format->folder};
  TRY(folder_out_go_on(&w->out, how->path, how->force, &work, &again));
  w->out.durable = true; /* what is there is replaced as a whole */
  if (resumable) TRY(journal_open(&e->journal, w, &key, again, &w->resumed));
  if (how->progress) progress_add(how->progress, w->resumed);
  return OK;
}

static Status commit(Writing *w, Engine *e) {
  TRY(journal_end(&e->journal, w));
  return w->how->format->folder ? folder_out_commit(&w->out) : folder_out_commit_file(&w->out, name_of(w, 0));
}

static Status run_engine(Writing *w) {
  Engine e = {.lock = PTHREAD_MUTEX_INITIALIZER};
  TRY_NEW(e.file, calloc((size_t)w->files + 1, sizeof *e.file));
  w->inside = &e;
  set_window(w, &e);
  Status s = open_work(w, &e);
  if (!s) s = put_all(w);
  if (s == e.first) e.first = OK;
  status_free(e.first);
  for (int i = 0; i < w->files; i++)
    if (e.file[i].open && !e.file[i].done) file_out_discard(&e.file[i].out);
  if (!s) s = commit(w, &e);
  journal_close(&e.journal);
  free(e.turn);
  free(e.file);
  w->inside = NULL;
  return s;
}

Status writing_run(Writing *w) {
  const WriteHow *how = w->how;
  if (how->progress) how->progress->total = w->d->bytes;
  if (how->format->write) return how->format->write(w, how->path, flags_of(w));
  return run_engine(w);
}

Status writing_add_file(Writing *w, const char *name, int *out) {
  TRY_NEW(w->file, arena_more(&w->arena, w->file, w->files, &w->files_cap));
  w->file[w->files] = (WriteFile){.name = name, .rank = -1};
  *out = w->files++;
  return OK;
}

Status writing_add_box(Writing *w, const WriteBox *b) {
  TRY_NEW(w->box, arena_more(&w->arena, w->box, w->boxes, &w->boxes_cap));
  w->box[w->boxes++] = *b;
  return OK;
}

static Status check_complete(const Derived *d) {
  for (int i = 0; i < d->n; i++)
    for (int k = 0; k < d->sources; k++) TRY(source_check(d->source[k], d->v[i].part[k]));
  return OK;
}

Status writing_plan(const Derived *d, const WriteHow *how, Writing **out) {
  Writing *w;
  TRY(check_complete(d));
  TRY_NEW(w, calloc(1, sizeof *w));
  w->d = d;
  w->how = how;
  Status s = how->format->plan ? how->format->plan(w) : OK;
  if (s) writing_free(w);
  else *out = w;
  return s;
}

void writing_free(Writing *w) {
  if (!w) return;
  folder_out_discard(&w->out);
  arena_free(&w->arena);
  free(w);
}

Status writing_plan_mesh(Writing *w, SavePlan **plan) {
  const WriteMesh *m = w->how->mesh;
  TRY_NEW(*plan, arena_new_n(&w->arena, SavePlan, m->ranks));
  for (int i = 0; i < w->d->n; i++) {
    const DerivedTensor *t = &w->d->v[i];
    Placement place[MAX_AXES];
    TRY(m->place(m->arg, t, place));
    Layout l = {.ndim = t->ndim, .shape = t->size, .naxes = m->naxes, .axis = m->axis, .place = place};
    Status s = placements_check(place, m->naxes, t->ndim, t->name);
    if (!s) s = layout_check(&l);
    for (int r = 0; !s && r < m->ranks; r++) {
      int coord[MAX_AXES];
      mesh_coord(m->axis, m->naxes, r, coord);
      s = save_plan_add_layout(&(*plan)[r], &w->arena, t->name, t->dtype, &l, coord);
    }
    TRY(s);
  }
  return save_plans_dedup(*plan, m->ranks, SAVE_BALANCED);
}
