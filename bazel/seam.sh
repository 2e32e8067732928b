#!/bin/bash
# seam.sh VENDOR OUTPUT GO
#
# Checks the seam, and writes the overlay for a go command at the root of Bazel's tree.
# The seam's program wants a tree of files, and Bazel's is one of links.
set -eu
vendor=$PWD/$1 output=$PWD/$2 go=$3
tree=$PWD/.seam
mkdir "$tree"
cp -RL go.mod go.sum seam "$tree"
ln -s "$vendor" "$tree/vendor"
export HOME=$tree GOCACHE=${GOCACHE:-$PWD/.gocache}
cd "$tree"
"$go" run -trimpath ./seam -o overlay.json
sed "s|$tree/||g" overlay.json >"$output"
