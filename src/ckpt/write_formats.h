/* write_formats.h -- the formats that writing.c lists; see writing.h. */
#ifndef TESS_CKPT_WRITE_FORMATS_H
#define TESS_CKPT_WRITE_FORMATS_H

#include "ckpt/writing.h"

Status plan_safetensors(Writing *w);
Status plan_hf(Writing *w);
Status finish_hf(Writing *w);
Status plan_run(Writing *w);
Status finish_run(Writing *w);
Status plan_dcp(Writing *w);
Status around_dcp(Writing *w, const WriteBox *b);
Status finish_dcp(Writing *w);
Status write_pt2(Writing *w, const char *path, unsigned flags);

/* Boxes of a .safetensors file, with the names that they have in it. */
typedef struct {
  WriteBox *box;
  const char **key;
  int n;
  bool sharded; /* tells where they begin */
} SafeFile;
/* Places them in the file, makes its header, and adds them to the plan. */
Status plan_safe_file(Writing *w, int file, SafeFile *f);

#endif
