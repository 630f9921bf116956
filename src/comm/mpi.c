/* mpi.c -- ranks of an MPI launch: finds the plug-in, loads it, and makes a world on its port.
 *
 * MPIs have different ABIs, so the plug-in is a file of its own, compiled for the MPI that was
 * there when tessera was built; nothing else is linked with MPI.
 */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/p2p.h"

#define PLUGIN_NAME "libtessera_mpi.so"

/* ---- launchers ------------------------------------------------------------------------------ */

/* What launchers leave in the environment: which process it is, and how many there are. */
typedef struct {
  const char *rank, *size, *needs;
} Launcher;

static const Launcher launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL}, /* Open MPI */
    {"PMI_RANK", "PMI_SIZE", NULL},                         /* MPICH, Intel MPI, srun with pmi2 */
    {"PMIX_RANK", NULL, NULL},                              /* PMIx: prterun, srun with pmix */
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", NULL},   /* MVAPICH2 */
    {"PALS_RANKID", NULL, NULL},                            /* Cray */
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_MPI_TYPE"},
};

/* The one that started this process; NULL: none. */
static const Launcher *launcher(void) {
  for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
    if (getenv(launchers[i].rank) && (!launchers[i].needs || getenv(launchers[i].needs))) return &launchers[i];
  return NULL;
}

/* Number of processes, 0: not known, -1: no launcher. */
static int launched_size(void) {
  const Launcher *l = launcher();
  const char *size = l && l->size ? getenv(l->size) : NULL;
  return !l ? -1 : size ? atoi(size) : 0;
}

static int launched(void) {
  const Launcher *l = launcher();
  return l ? atoi(getenv(l->rank)) : -1;
}

/* ---- the plug-in ----------------------------------------------------------------------------- */

/* Folder of the file that holds this code: libtessera.so or a program. */
static bool own_folder(char *buf, size_t cap) {
  Dl_info info;
  char path[PATH_MAX];
  if (!dladdr((const void *)(uintptr_t)own_folder, &info) || !info.dli_fname) return false;
  /* Of a program, the name may be a word that was looked up in PATH. */
  const char *file = strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe";
  if (!realpath(file, path)) return false;
  *strrchr(path, '/') = 0;
  return snprintf(buf, cap, "%s", path) < (int)cap;
}

#ifndef TESS_LIBDIR
#define TESS_LIBDIR "lib"
#endif

/* As PLUGIN_NAME beside the library or program, or where an installed program has libraries. */
static bool find_beside(char *path, size_t cap) {
  static const char *const places[] = {"", ("../" TESS_LIBDIR "/"), "../", "../lib/", "../lib64/"};
  char folder[PATH_MAX];
  if (!own_folder(folder, sizeof folder)) return false;
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    int n = snprintf(path, cap, "%s/%s" PLUGIN_NAME, folder, places[i]);
    if (n < (int)cap && access(path, R_OK) == 0) return true;
  }
  return false;
}

static Status load(const char **from, char *path, size_t cap, PortOpenFn **open) {
  const char *asked = getenv("TESSERA_MPI_PLUGIN");
  *from = asked && *asked ? asked : find_beside(path, cap) ? path : PLUGIN_NAME;
  /* Global: components of Open MPI look for its symbols.  Never unloaded: nor is MPI. */
  void *library = dlopen(*from, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
  if (!library) {
    const char *why = dlerror();
    Status s = fail(ERR_FAIL, "the MPI plug-in cannot be loaded: %s", why ? why : *from);
    if (asked && *asked) return status_hint(s, "TESSERA_MPI_PLUGIN=%s", asked);
    return status_hint(s, "%s", mpi_transport.needs);
  }
  void *symbol = dlsym(library, PORT_SYMBOL);
  if (!symbol) return fail(ERR_FAIL, "%s is no MPI plug-in of tessera: it has no " PORT_SYMBOL, *from);
  memcpy(open, &symbol, sizeof symbol);
  return OK;
}

static Status find(char *path, size_t cap) {
  char buf[PATH_MAX];
  const char *from;
  PortOpenFn *open = NULL;
  TRY(load(&from, buf, sizeof buf, &open));
  snprintf(path, cap, "%s", from);
  return OK;
}

static Status join(World **out) {
  char buf[PATH_MAX];
  const char *from;
  PortOpenFn *open = NULL;
  *out = NULL;
  if (!launcher() && !getenv("TESSERA_MPI_PLUGIN")) {
    return status_hint(fail(ERR_USAGE, "this process was not started by an MPI launcher"),
                       "mpirun -n 4 PROGRAM; if there was one, set TESSERA_MPI_PLUGIN to the path of " PLUGIN_NAME);
  }
  TRY(load(&from, buf, sizeof buf, &open));
  Status s = p2p_new(&mpi_transport, open, out);
  if (s) return *status_message(s) ? status_at(s, "%s", from) : s; /* empty: another rank says it */
  const int launched = launched_size(), seen = world_size(*out);
  if (launched <= 0 || launched == seen) return OK;
  s = status_hint(fail(ERR_FAIL, "the launcher has started %d processes, the MPI plug-in (%s) sees %d", launched,
                       p2p_library(*out), seen),
                  "it was built for another MPI than the launcher's; build it with that one, or use its mpirun");
  world_free(*out);
  *out = NULL;
  return s;
}

const Transport mpi_transport = {
    .name = "mpi",
    .needs = "it is built where MPI is found (Debian: apt install libopenmpi-dev openmpi-bin); "
             "TESSERA_MPI_PLUGIN may name the file",
    .starter = "mpirun -n",
    .launched = launched,
    .join = join,
    .find = find,
    P2P_FUNCTIONS,
};
