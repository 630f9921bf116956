/* sharded_save.c -- see sharded_save.h. */
#include "ckpt/sharded_save.h"

#include <stdlib.h>
#include <string.h>

#include "base/strmap.h"
#include "ckpt/exchange.h"
#include "ckpt/sharded_files.h"
#include "tessera.h"

static const char why[] = "checkpoint";

struct ShardedSave {
  Arena arena;
  RunFolder *run;   /* of rank 0 */
  const char *path; /* or a folder by itself */
  bool force;
  Comm *c;
  SaveFacts facts;
  SavePlan *plan;          /* by rank; deduplicated */
  SavedList saved;         /* what they are together */
  const char **placements; /* of this rank's items */
  StrMap placed;           /* name -> placements, of all ranks */
  int n;                   /* this rank's items */
  FolderOut out;           /* of rank 0 */
  const char *folder;      /* where files go */
  RankFiles files;         /* of this rank */
  Scope scope;
  const Tensor **box;     /* what this rank writes */
  Snapshot *snapshot;     /* of the boxes; NULL: they are read as they are */
  int *from;              /* of the file that is being written: numbers of its boxes */
  uint64_t *hash, *bytes; /* of its boxes, of its files */
  Status outcome;         /* how this rank's work went so far */
  bool held, wrote;
  Message *told; /* by all ranks: what they wrote */
};

/* ---- what is to be saved ------------------------------------------------------------------------------------ */

static bool is_empty(const Chunk *c) {
  for (int d = 0; d < c->ndim; d++)
    if (!c->size[d]) return true;
  return false;
}

static bool is_empty_tensor(const WriteItem *w) {
  for (int d = 0; d < w->chunk.ndim; d++)
    if (!w->size[d]) return true;
  return false;
}

/* What this rank could write.  Empty boxes are left out, but for those of empty tensors. */
static Status plan_mine(ShardedSave *s, const ShardItem *items, SavePlan *out) {
  TRY_NEW(s->placements, arena_new_n(&s->arena, const char *, s->n + 1));
  for (int i = 0; i < s->n; i++) {
    SavePlan all = {0};
    ItemShard shard;
    char text[400];
    if (!text_is_utf8(items[i].name)) return fail(ERR_FAIL, "the name of a tensor is not UTF-8");
    TRY(item_shard(&items[i], &shard));
    if (!shard.local) continue;
    const Layout *l = &shard.of.layout;
    TRY_NEW(s->placements[i], arena_strdup(&s->arena, placements_print(l->place, l->naxes, text, sizeof text)));
    TRY(save_plan_add_layout(&all, &s->arena, items[i].name, items[i].tensor->dtype, l, shard.of.coord));
    for (int k = 0; k < all.n; k++) {
      if (is_empty(&all.v[k].chunk) && !is_empty_tensor(&all.v[k])) continue;
      TRY_NEW(out->v, arena_more(&s->arena, out->v, out->n, &out->cap));
      out->v[out->n++] = all.v[k];
    }
  }
  return OK;
}

/* ---- plans as bytes ------------------------------------------------------------------------------------------ */

/* A box as it goes from rank to rank; name and placements with their NULs follow. */
typedef struct {
  int32_t dtype, ndim, name, placements; /* bytes of the texts */
  int64_t size[MAX_DIMS], offset[MAX_DIMS], box[MAX_DIMS];
} Wire;

static void put_plan(const ShardedSave *s, const ShardItem *items, const SavePlan *plan, TextBuf *out) {
  int item = 0;
  for (int i = 0; i < plan->n; i++) {
    const WriteItem *w = &plan->v[i];
    Wire wire = {.dtype = (int32_t)w->dtype, .ndim = w->chunk.ndim};
    while (strcmp(items[item].name, w->fqn)) item++; /* the plan is in the order of the items */
    wire.name = (int32_t)strlen(w->fqn) + 1;
    wire.placements = (int32_t)strlen(s->placements[item]) + 1;
    memcpy(wire.size, w->size, sizeof wire.size);
    memcpy(wire.offset, w->chunk.offset, sizeof wire.offset);
    memcpy(wire.box, w->chunk.size, sizeof wire.box);
    text_write(out, (const char *)&wire, sizeof wire);
    text_write(out, w->fqn, (size_t)wire.name);
    text_write(out, s->placements[item], (size_t)wire.placements);
  }
}

static Status get_plan(ShardedSave *s, const Message *m, SavePlan *out) {
  const unsigned char *p = m->data, *end = p + m->size;
  while (p < end) {
    Wire wire;
    StrSlot *slot;
    memcpy(&wire, p, sizeof wire);
    p += sizeof wire;
    WriteItem w = {.fqn = (const char *)p, .kind = ITEM_SHARD, .dtype = (Dtype)wire.dtype};
    w.chunk.ndim = wire.ndim;
    memcpy(w.size, wire.size, sizeof w.size);
    memcpy(w.chunk.offset, wire.offset, sizeof wire.offset);
    memcpy(w.chunk.size, wire.box, sizeof wire.box);
    p += wire.name;
    TRY(strmap_slot(&s->placed, &s->arena, w.fqn, &slot));
    if (!slot->value) slot->value = (void *)(uintptr_t)p;
    p += wire.placements;
    TRY_NEW(out->v, arena_more(&s->arena, out->v, out->n, &out->cap));
    out->v[out->n++] = w;
  }
  return OK;
}

/* ---- beginning ---------------------------------------------------------------------------------------------- */

/* Everybody knows all plans, and comes to the same conclusions. */
static Status agree(ShardedSave *s, const ShardItem *items) {
  int ranks = comm_size(s->c);
  SavePlan mine = {0};
  TextBuf bytes = {0};
  Message *all;
  Status r = plan_mine(s, items, &mine);
  if (!r) put_plan(s, items, &mine, &bytes);
  if (!r && bytes.failed) r = fail_oom();
  r = exchange(s->c, why, bytes.text, bytes.len, r, &s->arena, &all);
  text_free(&bytes);
  TRY(r);
  TRY_NEW(s->plan, arena_new_n(&s->arena, SavePlan, ranks));
  for (int i = 0; i < ranks; i++) TRY(get_plan(s, &all[i], &s->plan[i]));
  TRY(save_plans_dedup(s->plan, ranks, SAVE_BALANCED));
  TRY(saved_list(s->plan, ranks, &s->arena, &s->saved));
  return rank_files(&s->plan[comm_rank(s->c)], comm_rank(s->c), &s->arena, &s->files);
}

/* Rank 0 makes the folder, and tells where it is. */
static Status open_folder(ShardedSave *s) {
  Status r = OK;
  Message *all;
  const char *path = "";
  if (comm_rank(s->c) == 0) {
    r = s->run    ? run_folder_begin(s->run, s->facts.step, &s->out)
        : s->path ? folder_out_open(&s->out, s->path, s->force)
                  : fail(ERR_FAIL, "rank 0 has no run folder to save to");
    s->out.durable = true;
    if (!r) path = s->out.temp;
  }
  TRY(exchange(s->c, why, path, strlen(path), r, &s->arena, &all));
  TRY_NEW(s->folder, arena_strndup(&s->arena, (const char *)all[0].data, all[0].size));
  return OK;
}

void sharded_save_free(ShardedSave *s) {
  if (!s) return;
  folder_out_discard(&s->out);
  snapshot_free(s->snapshot);
  status_free(s->outcome);
  scope_clear(&s->scope);
  arena_free(&s->arena);
  free(s);
}

static Status begin(ShardedSave *s, const ShardItem *items, ShardedSave **out) {
  Comm *c = s->c;
  /* All that agree() finds after the exchange is the same on all ranks, but for memory that ends. */
  Status r = exchange_outcome(c, why, agree(s, items));
  if (!r) r = open_folder(s);
  if (r) sharded_save_free(s);
  else *out = s;
  return r;
}

Status sharded_save_begin(RunFolder *run, Comm *c, const SaveFacts *facts, const ShardItem *items, int n,
                          ShardedSave **out) {
  ShardedSave *s;
  TRY_NEW(s, calloc(1, sizeof *s));
  s->run = run, s->c = c, s->n = n, s->facts = *facts;
  return begin(s, items, out);
}

int64_t sharded_save_bytes(const ShardedSave *s) {
  const SavePlan *plan = &s->plan[comm_rank(s->c)];
  int64_t total = 0;
  for (int i = 0; i < plan->n; i++) {
    int64_t n = (int64_t)dtype_size(plan->v[i].dtype);
    for (int d = 0; d < plan->v[i].chunk.ndim; d++) n *= plan->v[i].chunk.size[d];
    total += n;
  }
  return total;
}

/* ---- writing
 * ----------------------------------------------------------------------------------------------------- */

/* The part of an item that begins at a place of the whole. */
static Status view_box(const ShardItem *item, const WriteItem *w, Arena *arena, Scope *scope, Tensor **out) {
  ChunkList list = {0};
  ItemShard shard;
  TRY(item_shard(item, &shard));
  if (shard.local) TRY(chunks_of(&shard.of.layout, shard.of.coord, arena, &list));
  for (int i = 0; i < list.n; i++) {
    const Chunk *c = &list.v[i];
    const Tensor *local = shard.local;
    int64_t at = local->offset;
    if (c->ndim && memcmp(c->offset, w->chunk.offset, (size_t)c->ndim * sizeof *c->offset)) continue;
    for (int d = 0; d < c->ndim; d++) at += c->local[d] * local->stride[d];
    return tensor_as_strided(scope, local, c->ndim, c->size, local->stride, at, out);
  }
  return fail(ERR_USAGE, "'%s' lies otherwise than when the save was begun", w->fqn);
}

typedef struct {
  SafeItem *items;
  const char **key;
  const int64_t **offset;
  int *ndim, *from;
  int n;
} FileItems;

static Status new_items(Arena *arena, int n, FileItems *f) {
  TRY_NEW(f->items, arena_new_n(arena, SafeItem, n + 1));
  TRY_NEW(f->key, arena_new_n(arena, const char *, n + 1));
  TRY_NEW(f->offset, arena_new_n(arena, const int64_t *, n + 1));
  TRY_NEW(f->ndim, arena_new_n(arena, int, n + 1));
  TRY_NEW(f->from, arena_new_n(arena, int, n + 1));
  return OK;
}

static Status view_boxes(ShardedSave *s, const ShardItem *items, Arena *arena) {
  const SavePlan *plan = &s->plan[comm_rank(s->c)];
  StrMap at = {0}; /* name -> item */
  TRY_NEW(s->box, arena_new_n(&s->arena, const Tensor *, plan->n + 1));
  for (int i = 0; i < s->n; i++) {
    StrSlot *slot;
    TRY(strmap_slot(&at, arena, items[i].name, &slot));
    slot->value = (void *)(uintptr_t)&items[i];
  }
  for (int i = 0; i < plan->n; i++) {
    const ShardItem *item = strmap_get(&at, plan->v[i].fqn);
    Tensor *box;
    if (!item) return fail(ERR_USAGE, "'%s' is not there any more", plan->v[i].fqn);
    TRY(view_box(item, &plan->v[i], arena, &s->scope, &box));
    if (!tensor_data(box) && tensor_numel(box))
      return fail(ERR_FAIL, "tensor '%s' has no data to be written", item->name);
    s->box[i] = box;
  }
  return OK;
}

Snapshot *sharded_save_hold(ShardedSave *s, const ShardItem *items, const SnapshotHow *how) {
  Arena arena = {0};
  s->outcome = view_boxes(s, items, &arena);
  if (!s->outcome && how) s->outcome = snapshot_new(s->box, s->plan[comm_rank(s->c)].n, how, &s->snapshot);
  s->held = !s->outcome;
  arena_free(&arena);
  return s->snapshot;
}

static Status take(void *arg, int item, uint64_t at, const void **data, size_t *size) {
  const ShardedSave *s = arg;
  return snapshot_take(s->snapshot, s->from[item], at, data, size);
}

static void give_back(void *arg, int item, uint64_t at) {
  const ShardedSave *s = arg;
  snapshot_give_back(s->snapshot, s->from[item], at);
}

static Status write_file(ShardedSave *s, int file, Arena *arena) {
  const SavePlan *plan = &s->plan[comm_rank(s->c)];
  const RankFile *to = &s->files.v[file];
  const SafeReader reader = {take, give_back, s};
  SafeText text[] = {{"format", "pt"}, {SHARDING_KEY, NULL}};
  SafeWritten written = {.reader = s->snapshot ? &reader : NULL};
  FileItems f = {0};
  char *path;
  TRY(new_items(arena, plan->n, &f));
  for (int i = 0; i < plan->n; i++) {
    if (s->files.of[i] != file) continue;
    f.key[f.n] = plan->v[i].fqn + strlen(save_kinds[to->kind].prefix);
    f.items[f.n] = (SafeItem){f.key[f.n], s->box[i]};
    f.offset[f.n] = plan->v[i].chunk.offset;
    f.ndim[f.n] = plan->v[i].chunk.ndim;
    f.from[f.n++] = i;
  }
  s->from = f.from;
  TRY(sharding_info(f.key, f.offset, f.ndim, f.n, arena, &text[1].value));
  TRY_NEW(written.hash, arena_new_n(arena, uint64_t, f.n + 1));
  TRY_NEW(path, arena_printf(arena, "%s/%s", s->folder, to->name));
  TRY(safetensors_save_hashed(path, f.items, f.n, text, 2, FILE_SYNC, &written));
  for (int i = 0; i < f.n; i++) s->hash[f.from[i]] = written.hash[i];
  s->bytes[file] = written.bytes;
  return OK;
}

static Status write_files(ShardedSave *s) {
  Arena arena = {0};
  Status r = OK;
  TRY_NEW(s->hash, arena_new_n(&s->arena, uint64_t, s->plan[comm_rank(s->c)].n + 1));
  TRY_NEW(s->bytes, arena_new_n(&s->arena, uint64_t, s->files.n + 1));
  for (int i = 0; !r && i < s->files.n; i++) r = write_file(s, i, &arena);
  arena_free(&arena);
  return r;
}

void sharded_save_write(ShardedSave *s) {
  if (s->held) s->outcome = write_files(s);
  if (s->snapshot) snapshot_close(s->snapshot);
  s->wrote = true;
}

/* ---- the end
 * ------------------------------------------------------------------------------------------------------- */

typedef struct {
  ShardedSave *s;
  Manifest m;
  StrMap tensors; /* name -> ManifestTensor */
} Describing;

static Status add_tensors(Describing *d) {
  ShardedSave *s = d->s;
  TRY_NEW(d->m.tensor, arena_new_n(&s->arena, ManifestTensor, s->saved.n + 1));
  d->m.tensors = s->saved.n;
  for (int i = 0; i < s->saved.n; i++) {
    const SavedTensor *from = &s->saved.v[i];
    ManifestTensor *t = &d->m.tensor[i];
    StrSlot *slot;
    *t = (ManifestTensor){.name = from->fqn, .dtype = from->dtype, .ndim = from->ndim};
    t->placements = strmap_get(&s->placed, t->name);
    memcpy(t->size, from->size, sizeof t->size);
    TRY_NEW(t->chunk, arena_new_n(&s->arena, ManifestChunk, from->chunk.n + 1));
    TRY(strmap_slot(&d->tensors, &s->arena, t->name, &slot));
    slot->value = t;
  }
  return OK;
}

static void add_chunk(const Describing *d, const WriteItem *w, int file, uint64_t hash) {
  ManifestTensor *t = strmap_get(&d->tensors, w->fqn);
  ManifestChunk *c = &t->chunk[t->chunks++];
  *c = (ManifestChunk){.file = file, .hash = hash};
  memcpy(c->offset, w->chunk.offset, sizeof c->offset);
  memcpy(c->size, w->chunk.size, sizeof c->size);
}

/* Of each rank: bytes of its files, then hashes of its boxes. */
static Status describe(Describing *d, const Message *all) {
  ShardedSave *s = d->s;
  int ranks = comm_size(s->c), files = 0, boxes = 0;
  for (int r = 0; r < ranks; r++) boxes += s->plan[r].n;
  d->m.facts = s->facts;
  d->m.facts.version = TESS_VERSION;
  TRY(add_tensors(d));
  TRY_NEW(d->m.file, arena_new_n(&s->arena, ManifestFile, boxes + 1));
  for (int r = 0; r < ranks; r++) {
    RankFiles f;
    const uint64_t *told = (const uint64_t *)all[r].data; /* arenas align, and messages are 8 bytes each */
    uint64_t number;
    TRY(rank_files(&s->plan[r], r, &s->arena, &f));
    for (int i = 0; i < f.n; i++) {
      memcpy(&number, told + i, sizeof number);
      d->m.file[files + i] = (ManifestFile){f.v[i].name, save_kinds[f.v[i].kind].prefix, number};
    }
    for (int i = 0; i < s->plan[r].n; i++) {
      memcpy(&number, told + f.n + i, sizeof number);
      add_chunk(d, &s->plan[r].v[i], files + f.of[i], number);
    }
    files += f.n;
  }
  d->m.files = files;
  return manifest_sign(&d->m, &s->arena, &d->m.facts.signature);
}

static Status commit(ShardedSave *s, const Message *all) {
  Describing d = {.s = s};
  TRY(describe(&d, all));
  TRY(manifest_write(&d.m, &s->out, &s->arena));
  return folder_out_commit(&s->out);
}

Status sharded_save_join(ShardedSave *s) {
  const SavePlan *plan = &s->plan[comm_rank(s->c)];
  TextBuf bytes = {0};
  Status r = s->outcome;
  s->outcome = OK;
  if (!r && !s->wrote) r = fail(ERR_FAIL, "a save was ended before it was written");
  if (!r) {
    text_write(&bytes, (const char *)s->bytes, (size_t)s->files.n * sizeof *s->bytes);
    text_write(&bytes, (const char *)s->hash, (size_t)plan->n * sizeof *s->hash);
    if (bytes.failed) r = fail_oom();
  }
  r = exchange(s->c, why, bytes.text, bytes.len, r, &s->arena, &s->told);
  text_free(&bytes);
  return r;
}

void sharded_save_commit(ShardedSave *s, const KeepSaves *keep) {
  if (comm_rank(s->c)) return;
  s->outcome = commit(s, s->told);
  if (!s->outcome && s->run) run_folder_remove_old(s->run, keep);
}

Status sharded_save_end(ShardedSave *s) {
  Status r = s->outcome;
  s->outcome = OK;
  return exchange_outcome(s->c, why, r);
}

static Status save_all(ShardedSave *s, const ShardItem *items, const KeepSaves *keep) {
  sharded_save_hold(s, items, NULL);
  sharded_save_write(s);
  TRY(sharded_save_join(s));
  sharded_save_commit(s, keep);
  return sharded_save_end(s);
}

Status sharded_save(RunFolder *run, Comm *c, const SaveFacts *facts, const ShardItem *items, int n,
                    const KeepSaves *keep) {
  ShardedSave *s;
  TRY(sharded_save_begin(run, c, facts, items, n, &s));
  Status r = save_all(s, items, keep);
  sharded_save_free(s);
  return r;
}

Status sharded_save_folder(const char *path, bool force, Comm *c, const SaveFacts *facts, const ShardItem *items,
                           int n) {
  ShardedSave *s;
  TRY_NEW(s, calloc(1, sizeof *s));
  s->path = path, s->force = force, s->c = c, s->n = n, s->facts = *facts;
  TRY(begin(s, items, &s));
  Status r = save_all(s, items, NULL);
  sharded_save_free(s);
  return r;
}
