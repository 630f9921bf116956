/* plan_file.h -- plans as people write them: which part of a model is spread how.
 *
 *   {"mesh": {"dp": 2, "tp": 4},
 *    "parallelize": {"layers.*.mlp.up_proj": "colwise", "norm": {"style": "replicate", "axis": "tp"}},
 *    "params": {"x.weight": "S(0)"}, "packed": {"layers.*.attn.c_attn": 3},
 *    "inputs": {"input_ids": "S(0),R"}, "outputs": {"0": "R"}}
 *
 * The entries of "parallelize" alone are one too, and so is a Hugging Face config.json: its
 * base_model_tp_plan.  Patterns are names of modules or parameters;
 * '*' stands for any characters but a dot, '**' for any.
 */
#ifndef TESS_PLAN_PLAN_FILE_H
#define TESS_PLAN_PLAN_FILE_H

#include "base/arena.h"
#include "base/status.h"

/*      id                       words                                                     */
#define STYLES(X)                                                  \
  X(STYLE_COLWISE, "colwise") /* features of the result are cut */ \
  X(STYLE_ROWWISE, "rowwise") /* contracted features are cut    */ \
  X(STYLE_PACKED_COLWISE, "packed_colwise")                        \
  X(STYLE_PACKED_ROWWISE, "packed_rowwise")                        \
  X(STYLE_COLWISE_GATHER_OUTPUT, "colwise_gather_output")          \
  X(STYLE_ROWWISE_SPLIT_INPUT, "rowwise_split_input")              \
  X(STYLE_EMBEDDING_ROWWISE, "embedding_rowwise")                  \
  X(STYLE_SEQUENCE_PARALLEL, "sequence_parallel")                  \
  X(STYLE_REPLICATE, "replicate")                                  \
  X(STYLE_GATHER, "gather") /* results are whole              */   \
  X(STYLE_PLACEMENTS, "a list of placements")

/* clang-format off */
typedef enum {
#define X(id, word) id,
  STYLES(X)
#undef X
  STYLE_COUNT
} Style;
/* clang-format on */

const char *style_name(Style s);
/* Also the older words of Hugging Face plans (colwise_rep, local_colwise ...). */
Status style_parse(const char *word, Style *out);

enum { PATTERN_MAX = 500 }; /* characters */

typedef struct {
  const char *pattern;
  Style style;
  const char *placements; /* STYLE_PLACEMENTS */
  const char *axis;       /* name of the mesh axis; NULL: the one for tensor parallelism */
  bool anywhere;          /* the pattern may begin at any dot of a name */
} PlanEntry;

typedef struct {
  const char *name; /* of an input, an output, or a pattern */
  const char *text;
  int64_t count;
} PlanPair;

typedef struct PlanFile {
  Arena arena;
  const char *path; /* for messages */
  PlanEntry *entry; /* of parallelize and params, in file order */
  int nentries;
  PlanPair *packed, *inputs, *outputs;
  int npacked, ninputs, noutputs;
  const char *mesh; /* "dp=2,tp=4"; NULL: not told */
  bool automatic;   /* "auto": to be derived from the program (runtime/auto_plan.h) */
  /* What files do not tell: */
  const char
      *data_axis; /* the axis over which batches are sharded; NULL: those that are called so (dp, data ...) */
  bool any_batch; /* batches are sharded also where they do not divide: ranks get unequal parts, or none */
} PlanFile;

/* The word "auto" is no file: see automatic. */
Status plan_file_read(const char *path, PlanFile **out);
/* As plan_file_read() reads it; mesh NULL: as the plan has it. */
struct TextBuf;
void plan_file_print(struct TextBuf *b, const PlanFile *p, const char *mesh);
/* The same without the mesh and the braces around: `, "parallelize": {...}, ...`. */
void plan_print_members(struct TextBuf *b, const PlanFile *p);
/* An empty plan to add to. */
Status plan_file_new(const char *path, PlanFile **out);
Status plan_file_add(PlanFile *p, const char *pattern, Style style);
Status plan_file_parse(const char *path, const char *text, size_t size, PlanFile **out);
void plan_file_free(PlanFile *p); /* NULL is fine */

/* The whole name, a module's or a parameter's. */
bool pattern_matches(const PlanEntry *e, const char *name);

#endif
