/* changed_model.h -- golden programs whose JSON bytes change, for fuzz targets: which program, then changes one by
 * one (mutate_json.h).
 *
 * Eight bytes or fewer are a seed, which random bytes are made from.  The variable FUZZ_SAVE names a file that gets
 * the changed program, to try it by hand. */
#ifndef TESS_TESTS_CHANGED_MODEL_H
#define TESS_TESTS_CHANGED_MODEL_H

#include "base/json.h"
#include "base/zip.h"
#include "graph/graph.h"
#include "mutate_json.h"
#include "zip_bytes.h"

typedef struct {
  Zip *zip;
  yyjson_doc **json; /* per entry; NULL: no JSON */
} ModelSource;

enum { MOST_SOURCES = 64, SEED_CHOICES = 64 };

typedef struct {
  ModelSource list[MOST_SOURCES];
  int n;
} ModelSources;

/* The first programs of a golden folder that are no larger than so many bytes: FOLDER/x.pt2, FOLDER/x/program.pt2,
 * FOLDER/x/forward.pt2, FOLDER/x/rank0.pt2. */
void model_sources_add(ModelSources *m, const char *folder, int most, size_t largest);

/* `many` is where a seed's bytes are made. */
Choices model_choices(const uint8_t *data, size_t size, uint8_t many[SEED_CHOICES]);

/* The program with so many changes, as an archive; and saved, if that is asked for. */
void model_change(const ModelSource *s, Choices *c, int changes, ZipBytes *z);

Status model_read(const ZipBytes *z, Exported **out);

/* Inputs of sizes that only take time are an error. */
Status model_check_inputs(const Exported *e, Scope *scope, Arena *arena);

/* Written and read again, which must succeed.  *out NULL: it cannot be written. */
Status model_write_again(const Exported *e, Exported **out);

#endif
