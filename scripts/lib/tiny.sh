# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts that run small scenarios of many shapes.
# shellcheck shell=bash

# tiny FOLDER FFN ATTENTION RANKS-PER-DOMAIN DTYPE: the tiny scenario in another shape; prints its file.
tiny() {
    local name=tiny-$2f$3a-$4-$5
    sed -e "s/\"name\": \"[^\"]*\"/\"name\": \"$name\"/" -e "s/\"ffn_ranks\": [0-9]*/\"ffn_ranks\": $2/" \
        -e "s/\"attention_ranks\": [0-9]*/\"attention_ranks\": $3/" -e "s/\"ranks_per_domain\": [0-9]*/\"ranks_per_domain\": $4/" \
        -e "s/\"dtype\": \"[a-z0-9]*\"/\"dtype\": \"$5\"/" scenarios/tiny-2f4a-3x2-fp8.json >"$1/$name.json"
    echo "$1/$name.json"
}
