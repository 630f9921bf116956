/* mesh.h -- ranks on a grid with named axes.
 *
 * I1  Ranks lie row-major: the last axis varies fastest.  `rank` lists the world's ranks
 *     in that order (any ranks, each at most once; others are outside the mesh).
 * I2  A mesh belongs to one rank's Dist and is as that rank sees it: coord is its place,
 *     or inside = false.  Meshes with the same axes, names and ranks are the same pointer.
 * I3  A mesh without a world (world == NULL) plans only: layouts, costs and rules work,
 *     groups do not.
 */
#ifndef TESS_DIST_MESH_H
#define TESS_DIST_MESH_H

#include "comm/comm.h"
#include "shard/layout.h"

typedef struct Dist Dist;

typedef struct TessMesh Mesh;
struct TessMesh {
  int naxes;
  int axis[MAX_AXES];
  const char *name[MAX_AXES]; /* NULL: no name */
  int size;                   /* product of the axes */
  const int *rank;            /* size of them */
  bool inside;
  int coord[MAX_AXES];  /* of this rank; of no meaning outside */
  int devices_per_host; /* for the cost model: axes within a host are fast */
  World *world;
  Dist *dist;
  Comm *group[1 << MAX_AXES]; /* by set of axes: made when first asked for */
  uint64_t hash;
  Mesh *next; /* in the table of its Dist */
};

/* Everything distributed that a rank knows: its world, meshes, specs, decisions. */
Status dist_new(World *w, Dist **out); /* w may be NULL: plans only */
void dist_free(Dist *d);

/* rank NULL: 0, 1, 2 ...  names NULL or entries NULL: none.  Not collective: groups are
 * made when first used.  Fails on axes < 1, more ranks than the world has, a rank twice,
 * a name twice. */
Status mesh_new(Dist *d, const int *axis, int naxes, const char *const *names, const int *rank, Mesh **out);
/* "dp=2,tp=4" or "2x4" or "4". */
Status mesh_parse(Dist *d, const char *text, Mesh **out);
/* Sizes of the axes that such a text asks for, at most MAX_AXES. */
Status mesh_text_axes(const char *text, int *axis, int *naxes);
/* How many ranks it asks for. */
Status mesh_text_ranks(const char *text, int *out);

int mesh_axis_named(const Mesh *m, const char *name); /* -1: none */
/* The mesh of the named axes through this rank's coordinate (outside: through coordinate 0). */
Status mesh_sub(Mesh *m, const int *axes, int n, Mesh **out);
/* Those axes as one, named `name` (NULL: the names joined by '_'). */
Status mesh_flatten(Mesh *m, const int *axes, int n, const char *name, Mesh **out);

/* "tp", "dp_tp": how programs call the group of these axes; buf is returned.  Axes of one
 * rank are left out. */
const char *mesh_group_name(const Mesh *m, unsigned axes, char *buf, size_t cap);
/* The ranks that differ from this one in the axes of the set (bit a = axis a) only, in
 * row-major order.  Collective over them when made for the first time. */
Status mesh_group(Mesh *m, unsigned axes, Comm **out);
/* Ranks of the world in the group of `coord`; returns their number. */
int mesh_group_ranks(const Mesh *m, unsigned axes, const int *coord, int *ranks);
/* Coordinate of a rank of the world; false if it is outside. */
bool mesh_coord_of(const Mesh *m, int rank, int *coord);

/* What mesh_parse() reads: "dp=2,tp=4" or "2x4"; ranks are not told. */
const char *mesh_text(const Mesh *m, char *buf, size_t cap);
/* "Mesh(dp=2, tp=4)"; with ranks that are not 0, 1, 2 ...: "Mesh(2x2: 0 2 4 6)". */
const char *mesh_print(const Mesh *m, char *buf, size_t cap);

#endif
