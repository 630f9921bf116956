/* machine.h -- what the hardware of a rank can do, in a few numbers, to predict times.
 *
 *   {"name": "a100",
 *    "flops": {"f32": 17e12, "bf16": 220e12},   FLOP/s of a rank, by dtype; or one number
 *    "memory_bandwidth": 1.7e12,                bytes/s that a rank reads and writes
 *    "update_bandwidth": 1.7e12,                the same of an optimizer, which changes arrays in place;
 *                                               may be left out: memory_bandwidth
 *    "memory": 80e9,                            bytes that a rank has; may be left out
 *    "op_latency": 4e-6,                        seconds that an op takes at least; may be left out
 *    "ranks_per_node": 8,                       may be left out
 *    "overlap": 1,                              of started collectives, the part that costs the rank no time of its
 *                                               own; 1 unless told (GPUs), 0 where its cores move the data
 *    "links": {"tp": {"bandwidth": 230e9, "latency": 5e-6}, "node": {...}, "network": {...}, "default": {...}}}
 *
 * Sustained numbers, not those of data sheets.  A link's bandwidth is what a rank sends, and
 * receives, at the same time, in bytes/s; its latency is of one message, in seconds.  The link
 * of a mesh axis goes by the axis's name; else, if the ranks along it are on one node, by
 * "node"; else by "network"; else by "default".
 *
 *   an op          the longest of  FLOPs / flops,  bytes / memory_bandwidth (or update_bandwidth),  op_latency
 *   a collective   r ceil(log2 n) latency + received bytes / bandwidth;  r = 2 for all_reduce, else 1
 *
 * A collective over several axes uses the slowest of their links.  Those that are started overlap with what is
 * computed until their wait (plan_report_step.c); nothing else does.
 */
#ifndef TESS_REPORT_MACHINE_H
#define TESS_REPORT_MACHINE_H

#include "base/textbuf.h"
#include "dist/route.h"

enum { MAX_LINKS = 16, LINK_NAME = 64 };

typedef struct {
  char name[LINK_NAME]; /* of an axis, or node, network, default */
  double bandwidth, latency;
} MachineLink;

typedef struct {
  char name[64];
  double flops[DT_COUNT];                      /* 0: not told; then that of f32, or the largest there is */
  double memory_bandwidth, memory, op_latency; /* memory 0: not told */
  double update_bandwidth;                     /* 0: not told; then memory_bandwidth */
  int ranks_per_node;                          /* 0: not told */
  double overlap;                              /* 0 to 1 */
  MachineLink link[MAX_LINKS];
  int nlinks;
} Machine;

/* word: a preset's name, or the path of a JSON file. */
Status machine_find(const char *word, Machine *out);
Status machine_parse(const char *path, const char *text, size_t size, Machine *out);
/* Has every axis of more than one rank a link? */
Status machine_check(const Machine *m, const Mesh *mesh);
/* As machine_parse() reads it. */
void machine_print(TextBuf *b, const Machine *m);
/* "cpu2, a100, h100" */
const char *machine_presets(void);

double machine_op_seconds(const Machine *m, Dtype dtype, double flops, double bytes, bool updates);
/* bytes: that a rank receives.  0 for a group of one. */
double machine_collective_seconds(const Machine *m, const Mesh *mesh, StepKind kind, unsigned axes, int64_t bytes);
/* The link of one axis; NULL: none. */
const MachineLink *machine_link(const Machine *m, const Mesh *mesh, int axis);

#endif
