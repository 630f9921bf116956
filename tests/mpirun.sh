#!/bin/sh
# mpirun.sh MPIRUN RANKS PROGRAM... -- launches more ranks than there are cores, also as root, with
# any MPI: what Open MPI wants to be told goes through the environment.
mpirun=$1 ranks=$2
shift 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # MPI's own leaks
exec "$mpirun" -n "$ranks" "$@"
