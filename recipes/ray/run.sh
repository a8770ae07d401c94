#!/usr/bin/env bash
# A run spread over a Ray cluster whose machines share a file system; the SGLang servers run already.
#
#   RAY_ADDRESS=auto bash run.sh mine.yaml [org/name@1.0.0]
#
# Every machine needs eagle3-data with its extra `ray`, the same path to the run folder, and HF_TOKEN or the servers'
# key in its environment where they are needed. Stop it and start it again as often as you like: what was answered is
# in the journal.
set -euo pipefail

recipe=${1:?give a recipe}
publish=${2:-}
runs=${RUNS:-runs}

eagle3-data prepare "$recipe" --runs "$runs" --yes
eagle3-data generate "$recipe" --runs "$runs" --ray "${RAY_ADDRESS:-auto}" --yes
# asks for nothing that was answered: merges the shards, checks, measures, writes the card, publishes
exec eagle3-data run "$recipe" --runs "$runs" ${publish:+--publish "$publish"} --yes
