#!/bin/bash
# go.sh VENDOR OUTPUT COMMAND...
#
# Runs a go command at the root of Bazel's tree, with VENDOR where go looks for it.
set -eu
ln -sfn "$1" vendor
shift 2
export HOME=$PWD/.home GOCACHE=${GOCACHE:-$PWD/.gocache}
exec "$@"
