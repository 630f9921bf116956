/* load.h -- programs from files of either form. */
#ifndef TESS_HARNESS_LOAD_H
#define TESS_HARNESS_LOAD_H

#include "graph/graph.h"

/* Reads a program by what the file is: .pt2, or the text form.  For text, weights may be
 * given as a .pt2 or .safetensors; NULL: none. */
Status program_load(const char *path, const char *weights, Exported **out);

#endif
