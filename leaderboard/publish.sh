#!/usr/bin/env bash
# publish.sh RESULTS: take the records of a results folder among the published ones, render the table and its figures,
# and commit, once, if anything changed. A record that cannot be read ends it before the commit. Weights are not published.
set -euo pipefail
results=$(realpath "${1:?usage: leaderboard/publish.sh RESULTS}")
cd "$(dirname "$0")/.."

apart=(-name self-reported -o -name tuning) # what others say of themselves, and the trials of searches
wanted=(-name '*.json' -o -name '*.svg')
(cd "$results" && find . \( "${apart[@]}" \) -prune -o \( "${wanted[@]}" \) -print) | while read -r record; do
    install -D -m 644 "$results/$record" "leaderboard/runs/$record"
done
bench board --runs leaderboard/runs --out leaderboard/README.md --figures
git add leaderboard
changed=$(git diff --cached --name-only -- leaderboard/runs | wc -l)
if git diff --cached --quiet -- leaderboard; then
    echo "nothing changed: no commit"
else
    git commit --quiet --message "leaderboard: $changed records changed" -- leaderboard
    echo "committed $(git rev-parse --short HEAD): $changed records changed"
fi
