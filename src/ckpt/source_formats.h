/* source_formats.h -- the formats that source.c lists; see source.h. */
#ifndef TESS_CKPT_SOURCE_FORMATS_H
#define TESS_CKPT_SOURCE_FORMATS_H

#include "ckpt/source.h"

bool source_is_run(const char *path, bool folder);
Status source_open_run(Source *s);
bool source_is_dcp(const char *path, bool folder);
Status source_open_dcp(Source *s);
bool source_is_hf(const char *path, bool folder);
Status source_open_hf(Source *s);
bool source_is_safetensors(const char *path, bool folder);
Status source_open_safetensors(Source *s);
bool source_is_pt2(const char *path, bool folder);
Status source_open_pt2(Source *s);
bool source_is_torch(const char *path, bool folder);
Status source_open_torch(Source *s);

/* What .metadata of a distributed checkpoint says; s->path is its folder. */
Status source_read_dcp_metadata(Source *s, const void *data, size_t size);

#endif
