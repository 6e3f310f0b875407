#!/usr/bin/env bash
# publish.sh RESULTS: take the records of a results folder among the published ones, render the table and its figures,
# publish the weights of the best seeds (weights.py), and commit, once, if anything changed. A record that cannot be read
# ends it before the commit.
set -euo pipefail
results=$(realpath "${1:?usage: leaderboard/publish.sh RESULTS}")
cd "$(dirname "$0")/.."

# what others say of themselves, the trials of searches, pages about several runs
apart=(-name self-reported -o -name tuning -o -name seeds -o -name compare)
wanted=(-name '*.json' -o -name '*.svg')
(cd "$results" && find . \( "${apart[@]}" \) -prune -o \( "${wanted[@]}" \) -print) | while read -r record; do
    install -D -m 644 "$results/$record" "leaderboard/runs/$record"
done
bench board --runs leaderboard/runs --out leaderboard/README.md --figures
python leaderboard/summary.py
python leaderboard/weights.py "$results"
git add leaderboard README.md
changed=$(git diff --cached --name-only -- leaderboard/runs | wc -l)
if git diff --cached --quiet -- leaderboard README.md; then
    echo "nothing changed: no commit"
else
    git commit --quiet --message "leaderboard: $changed records changed" -- leaderboard README.md
    echo "committed $(git rev-parse --short HEAD): $changed records changed"
fi
